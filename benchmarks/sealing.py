"""What sealing costs the segmenter: its rules on the same messages, with and without; no Kafka, no MongoDB.

Rounds alternate, and each row is the median of the ratios within a round: both share what the machine does meanwhile.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import orjson

from afterword.schemas.base import rfc3339
from afterword.streams.sealing.codec import WrappingKeys
from afterword.streams.sealing.keyring import KeyRing
from afterword.streams.sealing.records import Sealing
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes
from afterword.streams.stores.user_keys import KeyOwner, Needed
from afterword.streams.tokens import count_tokens
from benchmarks.load import BEGIN
from benchmarks.suite import Finding, Form, Line
from tests.doubles.stores import MemoryUserKeys

MESSAGES = 20_000
CONVERSATIONS = 200
TEXT = "I would like to change my booking of the hotel in Rome to three nights from Monday, please. "
FOREVER = 10**9


@dataclass(frozen=True)
class Sent:
    """A record of `messages`."""

    key: bytes
    value: bytes
    offset: int
    topic: str = "messages"
    partition: int = 0
    timestamp: int = int(BEGIN.timestamp() * 1000)
    headers: tuple[tuple[str, bytes], ...] = ()


def records(number: int) -> list[Sent]:
    """Messages of 300 bytes of text, of as many users as conversations."""
    text = (TEXT * 4)[:300]
    found = []
    for n in range(number):
        name = f"c{n % CONVERSATIONS}"
        event = {"id": f"m{n}", "conversation_id": name, "user_id": f"u-{name}", "role": "user", "content": text}
        found.append(Sent(name.encode(), orjson.dumps({**event, "sent_at": rfc3339(BEGIN)}), n))
    return found


async def sealing() -> Sealing:
    """Sealing with every key at hand."""
    keys = KeyRing(MemoryUserKeys(), WrappingKeys([b"k" * 32]), FOREVER)
    await keys.fetch(Needed(frozenset(KeyOwner(None, f"u-c{n}") for n in range(CONVERSATIONS))))
    return Sealing(keys, is_on=True)


def seconds(sent: Sequence[Sent], with_sealing: Sealing | None) -> float:
    segmenter = Segmenter(Episodes(), "episode.closed", "messages.dlq", {}, {}, count_tokens, sealing=with_sealing)
    began = time.process_time()
    outcome = segmenter.process(sent, sent[0].timestamp)
    assert (outcome.done, outcome.needed) == (len(sent), None)
    return time.process_time() - began


async def run(form: Form, directory: Path) -> Sequence[Finding]:  # noqa: ARG001 – no files
    sent, keys = records(MESSAGES // (4 if form.short else 1)), await sealing()
    seconds(sent[:1000], None)
    seconds(sent[:1000], keys)
    rounds = [(seconds(sent, None), seconds(sent, keys)) for _ in range(form.rounds)]
    plain, sealed = (median(times) for times in zip(*rounds, strict=True))
    ratio = median(without / with_it for without, with_it in rounds)
    rows = [
        Line("without", {"messages/s of CPU time": f"{len(sent) / plain:,.0f}"}),
        Line("with sealing", {"messages/s of CPU time": f"{len(sent) / sealed:,.0f}"}, ratio=ratio),
    ]
    return [Finding("The segmenter's rules with and without sealing", rows)]
