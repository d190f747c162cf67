"""python -m benchmarks.quality [gate] [extractive] [titles] [redaction] [topics]: all of them unless some are named."""

import argparse
from collections.abc import Callable

from rich.console import Console

from benchmarks.quality import extractive, gate, redaction, segmentation, titles

PARTS: dict[str, Callable[[Console], None]] = {
    "gate": gate.show,
    "extractive": extractive.show,
    "titles": titles.show,
    "redaction": redaction.show,
    "topics": segmentation.show,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which to print")
    console = Console(width=120)
    for part in parser.parse_args().parts or PARTS:
        PARTS[part](console)


if __name__ == "__main__":
    main()
