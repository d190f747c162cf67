"""The command line, as `python -m afterword` and as the script `afterword`."""

import os
import sys
from importlib.util import find_spec
from typing import NoReturn

from afterword.streams.installed import ExtraMissing, extra_required, version_line

INTERRUPTED = 130
"""Exit code of a process that Ctrl-C ended, following the shells' convention."""


def main() -> None:
    """Run the command line, or say in one line which extra is missing."""
    try:
        with extra_required("worker", "the command line"):
            from afterword.cli import main as run

            # the extra `memory` installs the command line's library but not the engine
            if find_spec("faust") is None:
                raise ModuleNotFoundError(name="faust")
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except ExtraMissing as error:
        if sys.argv[1:] == ["--version"]:  # must also work in the base install, for bug reports
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
    """End the process at once with its exit code.

    At a regular exit the database driver waits up to half a second for its sleeping threads. Raises: SystemExit if its
    text has yet to be printed.
    """
    if not isinstance(ended.code, int | None):
        raise ended
    code = ended.code or 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass
        except OSError as error:  # a full disk; after a failed write it is known already
            if code == 0:
                sys.stderr.write(f"afterword: {error.strerror}\n")
                code = 1
    os._exit(code)


if __name__ == "__main__":
    main()
