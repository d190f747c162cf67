"""Optional dependencies: importing from an extra that is not installed gives a one-line error that names the extra."""

from collections.abc import Iterator
from contextlib import contextmanager

from afterword.streams.errors import AfterwordError

OURS = "afterword"
EMBEDDED = "afterword.embedded"
"""Our package that an extra installs."""
FOLDERS = dict.fromkeys(("worker", "serve"), " ./distributions/engine") | {"dev": " ./distributions/*"}
"""Folders with our other distributions that an extra installs."""


class ExtraMissing(AfterwordError, ImportError):
    """{what} needs: pip install '.[{extra}]'{folders} in a checkout"""


@contextmanager
def extra_required(extra: str, what: str) -> Iterator[None]:
    """Translate the failed import of a module that an extra installs. Raises: ExtraMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or OURS
        if missing.partition(".")[0] == OURS and missing != EMBEDDED:
            raise
        raise ExtraMissing(what=what, extra=extra, folders=FOLDERS.get(extra, "")) from error
