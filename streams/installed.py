"""What is installed: the version, the revision that it was built from, and optional dependencies.

Importing from an extra that is not installed gives a one-line error that names the extra.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from afterword.streams.errors import AfterwordError

PACKAGE = Path(__file__).parents[1]
OURS = "afterword"
EMBEDDED = "afterword.embedded"
"""Our package that an extra installs."""
TEXT = " ./distributions/text"
FOLDERS = dict.fromkeys(("worker", "serve", "aws"), f"{TEXT} ./distributions/engine") | {"dev": " ./distributions/*"}
"""Folders with our other distributions that an extra installs, if there is more than the text library."""


@cache
def running_version() -> str:
    """Return the installed version. Raises: PackageNotFoundError if the sources are only on the path."""
    return version("afterword")


def version_line() -> str:
    return f"afterword {running_version()} (revision {revision()})"


def revision(package: Path = PACKAGE) -> str:
    """Return the commit that a distribution was built from, or `unknown` in a checkout."""
    file = package / "REVISION"
    return file.read_text().strip() if file.exists() else "unknown"


class ExtraMissing(AfterwordError, ImportError):
    """{what} needs: pip install '.[{extra}]'{folders} in a checkout"""


@contextmanager
def extra_required(extra: str, what: str) -> Iterator[None]:
    """Replace the error of a failed import by one that names the extra to install. Raises: ExtraMissing."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = error.name or OURS
        if missing.partition(".")[0] == OURS and missing != EMBEDDED:
            raise
        raise ExtraMissing(what=what, extra=extra, folders=FOLDERS.get(extra, TEXT)) from error
