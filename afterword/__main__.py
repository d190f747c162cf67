"""`python -m afterword` and the script `afterword`: the command line."""

import sys

from afterword.extras import ExtraMissing, extra_required
from afterword.version import version_line


def main() -> None:
    """Run the command line, or say in one line what it needs."""
    try:
        with extra_required("worker", "the command line"):
            from afterword.cli import main as run
    except ExtraMissing as error:
        if sys.argv[1:] == ["--version"]:  # which a report of a bug names, of the base install too
            sys.stdout.write(f"{version_line()}\n")
            return
        sys.exit(f"afterword: {error}")
    run()


if __name__ == "__main__":
    main()
