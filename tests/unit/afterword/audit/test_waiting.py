"""Episodes that `audit --wait` waits for."""

import pytest

from afterword.audit.waiting import OpenEvents

CLOSED, SUMMARIES = "episode.closed", "summary.created"


@pytest.mark.parametrize(
    ("events", "left"),
    [
        ([(CLOSED, "c1:1:1")], 1),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:1")], 0),
        ([(SUMMARIES, "c1:1:1"), (CLOSED, "c1:1:1")], 0),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:2:1")], 1),
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:2")], 0),  # the first was superseded before its announcement
        ([(CLOSED, "c1:1:1"), (SUMMARIES, "c1:1:1"), (CLOSED, "c1:1:2")], 1),
        ([(CLOSED, "c1:1:2"), (SUMMARIES, "c1:1:2"), (SUMMARIES, "c1:1:1")], 0),
        ([(CLOSED, "a/c:1:1"), (SUMMARIES, "a/c:1:10"), (CLOSED, "no id"), (SUMMARIES, "x:" + "9" * 5000)], 0),
    ],
)
def test_an_episode_is_waited_for_until_its_revision_or_a_later_one_is_announced(
    events: list[tuple[str, str]], left: int
) -> None:
    waited = OpenEvents(CLOSED)
    for topic, event_id in events:
        waited.take(topic, event_id)
    assert len(waited.ids) == left
    assert waited.finished == len({name.rpartition(":")[0] for topic, name in events if topic == CLOSED} - {""}) - left
