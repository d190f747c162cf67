"""What the benchmark of sizes says, and what it sends."""

from pathlib import Path

from benchmarks.filling import Filled, said
from benchmarks.sizes import (
    AUDIT,
    CONTEXT,
    READY,
    RECALL,
    WHOLE_PATH,
    Footprint,
    Measured,
    finding,
    more,
)


def met(*found: Measured) -> dict[str, bool | None]:
    return {line.program: line.met for line in finding(found).lines}


def test_an_operation_meets_its_own_aims() -> None:
    assert met(Measured(CONTEXT, 10, [0.009] * 100)) == {"context, 10 messages": True}
    assert met(Measured(CONTEXT, 10, [0.011] * 100)) == {"context, 10 messages": False}
    assert met(Measured(CONTEXT, 10, [0.009] * 98 + [0.05] * 2)) == {"context, 10 messages": False}
    assert met(Measured(AUDIT, 100_000, [10.1], 100_000)) == {"audit, 100,000 messages": False}
    assert met(Measured(AUDIT, 1_000_000, [99.0], 1_000_000)) == {"audit, 1,000,000 messages": None}


def test_more_episodes_may_take_a_recall_longer() -> None:
    found = met(Measured(RECALL, 100_000, [0.021]), Measured(RECALL, 1_000_000, [0.039]))
    assert found == {"recall, 100,000 messages": False, "recall, 1,000,000 messages": True}


def test_the_cost_of_an_operation_is_flat_within_a_factor_of_two() -> None:
    [_, more, most] = finding([Measured("episodes", size, [size / 1000] * 2) for size in (40, 10, 20)]).lines
    assert (more.program, more.ratio, more.met) == ("episodes, 20 messages", 0.5, True)
    assert (most.program, most.ratio, most.met) == ("episodes, 40 messages", 0.25, False)


def test_the_cost_of_what_goes_through_all_messages_is_that_of_one() -> None:
    found = [Measured(WHOLE_PATH, size, [seconds], size) for size, seconds in ((10, 1.0), (100, 15.0))]
    [first, last] = finding(found).lines
    assert first.figures == {"in all": "1.0 s", "each": "100,000 µs"}
    assert (last.figures["each"], last.met) == ("150,000 µs", True)


def test_a_start_takes_as_long_as_it_may_whatever_the_size() -> None:
    starts = [Measured(READY, size, [seconds], is_flat=False) for size, seconds in ((10, 1.0), (20, 9.0), (30, 11.0))]
    assert [line.met for line in finding(starts).lines] == [True, True, False]
    assert [line.ratio for line in finding(starts).lines] == [None] * 3


def test_the_most_memory_that_was_seen_counts() -> None:
    [line] = finding([], [Footprint(10, 1_400_000_000, 1_600_000_000)]).lines
    assert (line.figures, line.met) == ({"idle": "1,400 MB", "most": "1,600 MB"}, False)


def test_every_conversation_has_as_many_messages() -> None:
    sent = list(said(range(200), 20, ["a turn"]))
    assert len({(one.conversation_id, one.id) for one in sent}) == len(sent) == 4_000
    assert len({one.conversation_id for one in sent}) == 200


def test_what_is_added_are_the_conversations_after_those_that_are_there(tmp_path: Path) -> None:
    assert Filled.of(tmp_path) == Filled()
    kept = Filled(500, 10_000, True, 12.5).keep(tmp_path)
    assert Filled.of(tmp_path) == kept
    assert more(tmp_path)[0] == 500
    [first, *_] = said(more(tmp_path), 20, ["a turn"])
    assert first.conversation_id == "c500"
