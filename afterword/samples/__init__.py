"""Real conversations to try things out with; where they come from is in README.md, their licence in LICENSE."""

from collections import deque
from collections.abc import Iterable
from importlib.resources import files
from itertools import islice

import orjson


def sample_lines() -> list[bytes]:
    """Return JSON messages, one per line, as `afterword produce` reads them."""
    return files(__name__).joinpath("conversations.jsonl").read_bytes().splitlines()


def interleaved(lines: Iterable[bytes], width: int) -> list[bytes]:
    """Interleave conversations like live traffic: one line of each in turn, `width` conversations at a time."""
    waiting: dict[str, deque[bytes]] = {}
    for line in lines:
        waiting.setdefault(orjson.loads(line)["conversation_id"], deque()).append(line)
    mixed = []
    while waiting:
        for name in list(islice(waiting, width)):
            mixed.append(waiting[name].popleft())
            if not waiting[name]:
                del waiting[name]
    return mixed
