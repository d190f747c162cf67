"""What `afterword recall` prints of a hit."""

from afterword.commands.memory import HIT_COLUMNS, _hit_row
from afterword.streams.stores.index import payload, recalled
from tests.samples import a_summary


def test_the_messages_that_match_are_named_last() -> None:
    hit = recalled(payload(a_summary()), 0.5)
    assert _hit_row(hit) == ("0.50", "c1:1", "2026-01-05 12:02", "A flight to Rome was booked.", "")
    matched = _hit_row(hit.model_copy(update={"matching_ids": ("m0", "m2")}))
    assert len(matched) == len(HIT_COLUMNS)
    assert matched[-1] == "matches: m0, m2"
