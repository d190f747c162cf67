"""The predictions of `make hostile` about its records are right, as readers and rules show without a server."""

import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from afterword.streams.kafka.fetching import GuardedRecords
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes
from afterword_text.tokens import count_tokens
from tests.e2e.deployment import Record
from tests.e2e.faults import hostile_records as hostile
from tests.e2e.faults.hostile_records import ACCEPTED, Attack, Fates

FAMILIES = (
    hostile.strange_bytes,
    hostile.flipped_bits,
    hostile.strange_headers,
    hostile.strange_times,
    hostile.compressed,
    hostile.shapes,
    hostile.strange_texts,
    hostile.overrides,
)


def read(attack: Attack) -> Iterator[tuple[Fates, Record]]:
    """Read an attack's records like a worker, which parses each."""
    if attack.batch is None:
        yield attack.fates, Record(attack.key, attack.value, attack.headers, 0, attack.timestamp_ms or hostile.NOW_MS)
        return
    offset, memory = 0, GuardedRecords(attack.batch)
    while memory.has_next():
        batch = memory.next_batch()
        offset = batch.next_offset
        for found in batch:
            fates = attack.fates_in_batch[found.offset]
            yield fates, Record(found.key, found.value, found.headers, found.offset, found.timestamp)
    assert offset == len(attack.fates_in_batch)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=settings().max_examples // 15)
@given(seed=st.integers(0, 2**32))
def test_each_hostile_record_has_its_predicted_outcome(
    family: Callable[[str, random.Random], list[Attack]], seed: int
) -> None:
    segmenter = Segmenter(Episodes(), "episodes", "dead", {}, {}, count_tokens)
    for attack in family("c", random.Random(seed)):
        for fates, record in read(attack):
            outcome = segmenter.process([record], 0)
            fate = next(iter(outcome.dead_letters), ACCEPTED)
            assert fate in fates, f"{fate}, not {fates}"
