"""Contents of `episode.closed`."""

from hashlib import sha256
from operator import attrgetter
from statistics import mean, pvariance

import orjson
import pytest

from afterword.schemas import EpisodeMessage, Source, decode_input
from afterword.schemas.episodes import CARRIED
from afterword.streams.segmenter.episodes import from_record
from tests.samples import a_whole_message
from tests.unit.segmenter.chat import NOON, SECOND, Chat, Sent, flush, limits, moment, say, says

FEELINGS = [-1, 0.5, 0.1]


def only(*records, chat=None, tenant_id=None):
    (episode,) = (chat or Chat()).hear(*records, flush(tenant_id=tenant_id))
    return episode


def test_episode_ids_are_escaped():
    (episode,) = Chat(limits(trigger=1)).hear(say("a", conversation_id="x:y/z%"))
    assert (episode.episode_id, episode.conversation_id) == ("x%3Ay%2Fz%25:1", "x:y/z%")


def test_fingerprint_covers_the_ordered_ids_and_contents():
    episode = only(say("a", "é"), say("b", "2"))
    assert episode.fingerprint == sha256('[["a","é"],["b","2"]]'.encode()).hexdigest()


def test_messages_are_carried_whole_without_archive_metadata():
    sent = a_whole_message().model_copy(update={"skip_summarization": False})
    (message,) = only(Sent(b"c1", sent.to_json()), flush("c1", tenant_id="t1")).messages
    assert message == EpisodeMessage(offset=message.offset, **{name: getattr(sent, name) for name in CARRIED})


def test_episode_message_fields_come_from_the_message():
    record = say("a")
    message = decode_input(record.key, record.value, [], record.timestamp)
    assert set(orjson.loads(from_record(message, record, 1, b"").body.json)) == CARRIED


ROLES = {"u": "user", "a": "assistant", "t": "tool"}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([say("a"), say("b")], {"episode_id": "c:1", "ordinal": 1, "revision": 1}),
        (  # speakers' clocks differ
            [say("a", at=7), say("b", at=3), say("c", at=5)],
            {"started_at": moment(NOON + 3 * SECOND), "ended_at": moment(NOON + 7 * SECOND)},
        ),
        ([say("a", stamped=9, sent_at=None)], {"started_at": moment(NOON + 9 * SECOND)}),
        *(
            ([say(f"m{n}", role=ROLES[role]) for n, role in enumerate(roles)], {"turn_count": turns})
            for roles, turns in (("u", 1), ("uata", 1), ("uaua", 2), ("uu", 2), ("at", 1), ("aua", 2))
        ),
        ([say("a", role="assistant", user_id="bot"), say("b"), say("c", user_id="eve")], {"user_id": "ann"}),
        ([say("a", role="assistant", user_id="bot"), say("b", role="tool", user_id="api")], {"user_id": "bot"}),
        ([say("a", agent_id="helper")], {"tenant_id": None, "agent_id": None}),
        (
            [say("a", flows=["y", "x"], tools=["t"]), say("b", flows=["x", "z"], tools=["s", "t"])],
            {"metrics.flows_activated": ("y", "x", "z"), "metrics.tools_invoked": ("t", "s")},
        ),
        (
            [*(say(f"m{feeling}", sentiment=feeling) for feeling in FEELINGS), say("z")],
            {
                "metrics.average_sentiment": pytest.approx(mean(FEELINGS)),
                "metrics.sentiment_variance": pytest.approx(pvariance(FEELINGS)),
            },
        ),
        ([say("a")], {"metrics.average_sentiment": None, "metrics.sentiment_variance": None}),
    ],
)
def test_episode_sums_up_its_messages(records, expected):
    episode = only(*records)
    assert {name: attrgetter(name)(episode) for name in expected} == expected


def test_episode_has_the_tenant_of_its_conversation():
    assert only(say("a", tenant_id="acme"), tenant_id="acme").tenant_id == "acme"


def test_overlap_is_not_counted():
    chat = Chat(limits(overlap=2))
    chat.hear(*says("a", "b", flows=["old"], sentiment=1, content="12345"), flush())
    episode = only(say("c", "123", role="assistant"), chat=chat)
    assert (episode.message_count, episode.token_count, episode.turn_count) == (1, 3, 1)
    assert episode.metrics.flows_activated == ()
    assert episode.metrics.average_sentiment is None
    assert len(episode.overlap) == 2


def test_episode_says_where_its_messages_were_read():
    chat = Chat()
    chat.hear(say("a", conversation_id="other"))
    episode = only(say("a"), say("b", conversation_id="other"), say("c"), chat=chat)
    assert episode.source == Source(topic="messages", partition=3, first_offset=1, last_offset=3)


def test_episode_closed_by_time_says_so():
    chat = Chat(limits(idle_seconds=10))
    chat.hear(say("a"), say("b"))
    (episode,) = chat.wait(10)
    assert episode.source == Source(topic="messages", partition=3, first_offset=0, last_offset=1)
    assert episode.closed_at == moment(NOON + 10 * SECOND)
