"""What is installed: the version, the revision that it was built from, and optional dependencies.

Importing from an extra that is not installed gives a one-line error that names the extra.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

from afterword.streams.errors import AfterwordError

UNKNOWN = "unknown"
PACKAGE = Path(__file__).parent
OURS = "afterword"
EMBEDDED = "afterword.embedded"
"""Our package that an extra installs."""
FOLDERS = dict.fromkeys(("worker", "serve"), " ./distributions/engine") | {"dev": " ./distributions/*"}
"""Folders with our other distributions that an extra installs."""


@cache
def running_version() -> str:
    """Return the installed version. Raises: PackageNotFoundError if the sources are only on the path."""
    return version("afterword")


def version_line() -> str:
    """Return what `afterword --version` prints."""
    return f"afterword {running_version()} (revision {revision()})"


def revision(package: Path = PACKAGE) -> str:
    """Return the commit: recorded in a distribution when it was built, or git's in a checkout, else `unknown`."""
    try:
        return (package / "REVISION").read_text().strip()
    except FileNotFoundError:
        return _checked_out(package.parent)


def _checked_out(root: Path) -> str:
    if not (root / ".git").exists():  # the folder might be inside another repository
        return UNKNOWN
    command = ["git", "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)  # noqa: S603 – a constant command
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return done.stdout.strip()


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
        raise ExtraMissing(what=what, extra=extra, folders=FOLDERS.get(extra, "")) from error
