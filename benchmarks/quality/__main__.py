"""python -m benchmarks.quality [PART …]: gate, extractive, golden, titles, redaction, topics, shifts; or all."""

import argparse
from collections.abc import Callable

from rich.console import Console

from benchmarks.quality import extractive, gate, golden, redaction, segmentation, shift_training, titles

PARTS: dict[str, Callable[[Console], None]] = {
    "gate": gate.show,
    "extractive": extractive.show,
    "golden": golden.show,
    "titles": titles.show,
    "redaction": redaction.show,
    "topics": segmentation.show,
    "shifts": shift_training.show,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="which to print")
    console = Console(width=120)
    for part in parser.parse_args().parts or PARTS:
        PARTS[part](console)


if __name__ == "__main__":
    main()
