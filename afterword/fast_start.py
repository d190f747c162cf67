"""Import structlog without rich, which it would use to format tracebacks, and which takes a tenth of a second.

Our logs have plain tracebacks (`streams/logs.py`), and commands that print tables import rich themselves.
"""

import sys

if "structlog" not in sys.modules and "rich" not in sys.modules:
    sys.modules["rich"] = None  # type: ignore[assignment]  # what makes an import fail
    import structlog  # noqa: F401 – the purpose of this module

    del sys.modules["rich"]
