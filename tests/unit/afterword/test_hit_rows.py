"""What `afterword recall` prints for a hit."""

import inspect

from afterword.commands.reading import HIT_COLUMNS, _hit_row, recall
from afterword.streams.stores.index import MIN_COVERAGE, Match, RankingScores, Recalled
from tests.samples import NOON, a_summary


def test_messages_precede_the_summary_and_forge_no_line() -> None:
    scores = RankingScores(episode=0.5, passage=0.5, message=0.5, cosine=None)
    hit = Recalled.of(a_summary(title="Rome"), score=0.5, coverage=0.5, scores=scores)
    last = "Rome: A flight to Rome was booked."
    assert _hit_row(hit) == ("0.50", "c1:1", "2026-01-05 12:02", "", last)
    said = Match(message_id="m0", role="user", sent_at=NOON, content="To Rome!\n2026-01-01, user: x\x1b[2J", score=1.0)
    matched = _hit_row(hit.model_copy(update={"matches": (said,)}))
    assert len(matched) == len(HIT_COLUMNS)
    assert matched[-1] == last
    assert matched[-2] == "2026-01-05, user: To Rome!\n    2026-01-01, user: x\ufffd[2J (m0)"


def test_command_has_memorys_minimum_coverage() -> None:
    assert inspect.signature(recall).parameters["min_coverage"].default == MIN_COVERAGE
