"""Directories and files that hold conversations: only the user who runs the process may read them."""

import os
import stat
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o077
"""The mask for new files: 0600, and 0700 for directories."""
DIRECTORY = 0o700
OWNER_FILE = 0o600
OUTPUT = 1
CACHE_VARIABLE = "AFTERWORD_CACHE_DIR"


def cache_directory() -> Path:
    """Return the cache directory: `AFTERWORD_CACHE_DIR`, or `afterword` in XDG's cache directory (`~/.cache`)."""
    if chosen := os.environ.get(CACHE_VARIABLE):
        return Path(chosen).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "afterword"


def private_directory(path: Path) -> None:
    """Create the directory and its missing parents with mode 0700, whatever the umask.

    An existing directory keeps its mode, which is its operator's choice: a volume may be shared with a group on
    purpose. Raises: OSError.
    """
    for missing in reversed([at for at in (path, *path.parents) if not at.exists()]):
        with suppress(FileExistsError):
            missing.mkdir(DIRECTORY)
    path.mkdir(exist_ok=True)  # raises if the path is a file


def make_output_private() -> None:
    """If standard output is a file of this user, let only them read it. A terminal or a pipe stays as it is."""
    with suppress(OSError):
        if stat.S_ISREG(os.fstat(OUTPUT).st_mode):
            os.fchmod(OUTPUT, OWNER_FILE)


def write_private(path: Path, content: bytes) -> None:
    """Write a file for its owner alone, atomically, so that nobody reads half of it. Raises: OSError."""
    private_directory(path.parent)
    unfinished = path.with_name(f"{path.name}.new")
    unfinished.unlink(missing_ok=True)  # an existing file would keep its mode
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, OWNER_FILE), "wb") as writing:  # noqa: PTH123
        writing.write(content)
    os.replace(unfinished, path)  # noqa: PTH105 – `os.replace` is known to be atomic
