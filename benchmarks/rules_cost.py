"""CPU time of the segmenter's rules, without Kafka and RocksDB: of this code and of other worktrees, in turns.

python -m benchmarks.rules_cost [WORKTREE …]

A worktree is a checkout of an earlier commit: git worktree add ../before COMMIT.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROUNDS = 7
"""The fastest counts: what else the machine does only adds."""
MESSAGES, CONVERSATIONS, BATCH = 12_000, 1_200, 500
NOON_MS = 1_767_268_800_000
INPUTS = ("made-up messages", "dialogues", "dialogues, topics in the text")


class Record(NamedTuple):
    """A record of `messages`, with aiokafka's names."""

    key: bytes
    value: bytes
    offset: int
    timestamp: int
    topic: str = "messages"
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


def microseconds(number: int) -> float:
    """CPU time of a message of that input, in the code that this process has found."""
    import orjson

    from afterword.streams.segmenter.processor import Segmenter
    from afterword.streams.settings import Episodes
    from afterword.streams.tokens import count_tokens
    from benchmarks.load import dialogues, messages

    by_text = number == 2
    told = list((messages if number == 0 else dialogues)(MESSAGES, CONVERSATIONS))
    if by_text:
        told = [(key, orjson.dumps({**orjson.loads(value), "is_continuation": None})) for key, value in told]
    records = [Record(key, value, offset, NOON_MS + offset) for offset, (key, value) in enumerate(told)]
    limits = Episodes(topic_shift="auto" if by_text else "flags")
    segmenter = Segmenter(limits, "episodes", "dead", {}, {}, count_tokens=count_tokens)
    segmenter.process(records[:BATCH], NOON_MS)
    began = time.process_time()
    for first in range(BATCH, len(records), BATCH):
        segmenter.process(records[first : first + BATCH], NOON_MS)
    return (time.process_time() - began) / (len(records) - BATCH) * 1e6


def measured(worktree: Path, number: int) -> float:
    command = [sys.executable, "-P", __file__, "--input", str(number)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(worktree)}, check=True, capture_output=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("worktrees", nargs="*", type=Path)
    parser.add_argument("--input", type=int, help="print one measurement of one input")
    given = parser.parse_args()
    if given.input is not None:
        print(microseconds(given.input))
        return
    here = Path(__file__).parents[1]
    for number, name in enumerate(INPUTS):
        rounds = [[measured(place, number) for place in (here, *given.worktrees)] for _ in range(ROUNDS)]
        ours, *others = (min(column) for column in zip(*rounds, strict=True))
        print(f"{name}: {ours:.1f} µs a message", flush=True)
        for worktree, theirs in zip(given.worktrees, others, strict=True):
            print(f"  {worktree}: {theirs:.1f} µs, {theirs / ours:.2f} × ours", flush=True)


if __name__ == "__main__":
    main()
