"""Events made of the messages' JSON as it is in their rows, beside those that the models make."""

from datetime import UTC, datetime

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import MessageCreated
from afterword.schemas.messages import INT64_MAX
from afterword.streams.errors import RowUnreadable
from afterword.streams.segmenter.arrival import carried, milliseconds
from afterword.streams.segmenter.assembly import all_written
from afterword.streams.segmenter.episodes import ClosedEpisode, event_of, json_of
from afterword.streams.segmenter.state import Body, Scope
from tests.unit.segmenter.chat import NOON

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
PARTIES = st.sampled_from(["", "ann", 'ä\u2028\x00\x7f"\\', "x" * 256])
LISTS = st.lists(TEXTS, max_size=2).map(tuple)
MESSAGES = st.builds(
    MessageCreated,
    id=TEXTS.filter(bool),
    conversation_id=st.just("c"),
    user_id=PARTIES,
    agent_id=st.none() | PARTIES,
    role=st.sampled_from(["user", "assistant", "system", "tool"]),
    content=TEXTS,
    sent_at=st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    sentiment=st.none() | st.floats(-1, 1) | st.integers(-1, 1),
    flows=LISTS,
    tools=LISTS,
)


def body(json: bytes) -> Body:
    return Body(json, 3, 7, None, None)


def row(message: MessageCreated) -> bytes:
    """Its JSON as it is kept."""
    assert message.sent_at is not None
    return carried(message, milliseconds(message.sent_at))


def changed(message: MessageCreated, offset: int) -> bytes:
    """Its row after an edit."""
    return orjson.dumps(orjson.loads(row(message)) | {"changed": offset})


BODIES = MESSAGES.map(row).map(body)
EDITED = st.builds(changed, MESSAGES, st.integers(0, INT64_MAX)).map(body)
EPISODES = st.builds(
    ClosedEpisode,
    scope=st.sampled_from([Scope("c"), Scope("c/ä:"), Scope("c", "helper"), Scope("c", "")]),
    tenant_id=st.none() | PARTIES,
    ordinal=st.integers(1, 2**53),
    reason=st.sampled_from(["trigger", "topic_shift", "max_size", "idle", "flush"]),
    core=st.lists(BODIES | EDITED, min_size=1, max_size=4),
    overlap=st.lists(BODIES | EDITED, max_size=2),
    topic_model=st.integers(0, 15),
)


def with_overlaps(episodes: list[ClosedEpisode]) -> list[ClosedEpisode]:
    """The episodes, each with the last message of the one before it."""
    last = [[], *(each.core[-1:] for each in episodes)]
    return [each._replace(overlap=[*each.overlap, *more]) for each, more in zip(episodes, last, strict=False)]


@given(st.lists(EPISODES, min_size=1, max_size=3).map(with_overlaps), st.integers(0, 2**42))
def test_the_bytes_are_those_of_the_models(episodes, now_ms):
    assert all(all_written([*closed.core, *closed.overlap], {}) for closed in episodes)
    expected = [event_of(closed, "messages", 3, now_ms).to_json() for closed in episodes]
    read = {}
    assert [json_of(closed, "messages", 3, now_ms, None, read) for closed in episodes] == expected


VALUES = [None, True, 0, 1, 0.5, -2.5, "", "x", "user", "x" * 257, [], [1], ["a"], {}, 2**63]
TIMES = [
    "2026-02-30T00:00:00.000Z",
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.000+01:00",
    "2026-01-01T24:00:00.000Z",
]
NAMES = ["id", "role", "content", "sent_at", "user_id", "agent_id", "sentiment", "flows", "tools", "changed", "more"]


@given(MESSAGES, st.sampled_from(NAMES), st.sampled_from([*VALUES, *TIMES]), st.booleans())
def test_what_another_release_or_damage_has_left_is_what_the_models_make_of_it(message, name, value, is_missing):
    fields = orjson.loads(row(message)) | {name: value}
    if is_missing:
        del fields[name]
    same_as_the_models(orjson.dumps(fields))


@given(MESSAGES, st.data())
def test_a_row_that_is_cut_off_or_not_json_is_damaged(message, data):
    json = row(message)
    same_as_the_models(json[: data.draw(st.integers(1, len(json) - 1))])
    same_as_the_models(data.draw(st.binary(min_size=1, max_size=40)))


def same_as_the_models(json: bytes) -> None:
    closed = ClosedEpisode(Scope("c"), None, 1, "flush", [body(json)], [])
    try:
        expected = event_of(closed, "messages", 3, NOON).to_json()
    except RowUnreadable:
        with pytest.raises(RowUnreadable):
            json_of(closed, "messages", 3, NOON, None, {})
    else:
        assert json_of(closed, "messages", 3, NOON, None, {}) == expected
