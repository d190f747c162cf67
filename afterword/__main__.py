"""`python -m afterword` and the script `afterword`: the command line."""

import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import NoReturn

from afterword.extras import ExtraMissing, extra_required
from afterword.version import version_line

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended, as shells have it."""


def main() -> None:
    """Run the command line, or say in one line what it needs."""
    try:
        with extra_required("worker", "the command line"):
            from afterword.cli import main as run

            if find_spec("faust") is None:  # what the extra memory brings has a command line's library, too
                raise ModuleNotFoundError(name="faust")
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except ExtraMissing as error:
        if sys.argv[1:] == ["--version"]:  # which a report of a bug names, of the base install too
            sys.stdout.write(f"{version_line()}\n")
            return
        sys.exit(f"afterword: {error}")
    try:
        run()
    except SystemExit as ended:
        leave(ended)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def leave(ended: SystemExit) -> NoReturn:
    """Leave the process at once, with its exit code.

    At the end of a process the database's driver waits up to half a second for its threads, which only sleep then.
    Raises: SystemExit, if it has a text that is still to be printed.
    """
    if not isinstance(ended.code, int | None):
        raise ended
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError):
            stream.flush()
    os._exit(ended.code or 0)


if __name__ == "__main__":
    main()
