"""Directories and files that hold conversations: for the user who runs the process, and nobody else on the machine."""

import os
from contextlib import suppress
from pathlib import Path

OWNER_ONLY = 0o077
"""The mask of new files: 0600, and 0700 for directories."""
DIRECTORY = 0o700


def private_directory(path: Path) -> None:
    """Create the directory and its missing parents with mode 0700, whatever the umask; what exists keeps its mode.

    The mode of an existing directory is its operator's: a volume may be shared by a group on purpose.
    Raises: OSError.
    """
    for missing in reversed([at for at in (path, *path.parents) if not at.exists()]):
        with suppress(FileExistsError):
            missing.mkdir(DIRECTORY)
    path.mkdir(exist_ok=True)  # raises if it is a file


def make_files_private() -> None:
    """Let this process, and those it starts, create files for their owner alone; before its first thread."""
    os.umask(OWNER_ONLY)
