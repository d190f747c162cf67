"""The commands, grouped by subject. What this module does at import makes every command start a quarter faster."""

import gc
import os
import sys

from faust_eos.options import COLLECTED_AT

gc.set_threshold(*COLLECTED_AT)  # imports create hardly any garbage, so collecting it would only take time
# pydantic would read the metadata of all installed distributions to find plugins
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# structlog would import rich to format tracebacks. Our logs have plain ones, and commands that print tables import rich
# themselves.
if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # None makes its import fail
    import structlog  # noqa: F401 – so that rich is not imported with it

    del sys.modules["rich"]
