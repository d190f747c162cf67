"""The installed version and the revision it was built from."""

import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path

UNKNOWN = "unknown"
PACKAGE = Path(__file__).parent


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
