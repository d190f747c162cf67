"""Contents of `episode.closed`."""

from hashlib import sha256
from statistics import mean, pvariance

import orjson
import pytest

from afterword.schemas import EpisodeMessage, Source, decode_input
from afterword.schemas.episodes import CARRIED
from afterword.streams.segmenter.episodes import from_record
from tests.unit.segmenter.chat import NOON, SECOND, Chat, flush, limits, moment, say, says


def only(*records, chat=None, tenant_id=None):
    (episode,) = (chat or Chat()).hear(*records, flush(tenant_id=tenant_id))
    return episode


def talk(roles, **fields):
    return [say(f"m{i}", role=role, **fields) for i, role in enumerate(roles)]


def test_episode_id_names_conversation_and_ordinal():
    episode = only(say("a", conversation_id="x:y/z"), say("b"))
    assert (episode.episode_id, episode.ordinal, episode.revision) == ("c:1", 1, 1)


def test_episode_ids_are_escaped():
    (episode,) = Chat(limits(trigger=1)).hear(say("a", conversation_id="x:y/z%"))
    assert (episode.episode_id, episode.conversation_id) == ("x%3Ay%2Fz%25:1", "x:y/z%")


def test_fingerprint_covers_the_ordered_ids_and_contents():
    episode = only(say("a", "é"), say("b", "2"))
    assert episode.fingerprint == sha256('[["a","é"],["b","2"]]'.encode()).hexdigest()


def test_episode_spans_its_messages_times_despite_clocks():
    episode = only(say("a", at=7), say("b", at=3), say("c", at=5))
    assert (episode.started_at, episode.ended_at) == (moment(NOON + 3 * SECOND), moment(NOON + 7 * SECOND))


def test_message_without_sent_time_has_its_records():
    assert only(say("a", stamped=9, sent_at=None)).started_at == moment(NOON + 9 * SECOND)


def test_messages_are_carried_whole_without_archive_metadata():
    fields = {
        "user_id": "bob", "agent_id": "helper", "role": "tool", "content": "done \u2028 𝔘 \0", "sentiment": -0.25,
        "flows": ["f"], "tools": ["t", "u"],
    }  # fmt: skip
    (message,) = only(say("a", metadata={"much": "more"}, is_continuation=True, **fields)).messages
    expected = EpisodeMessage(
        id="a", sent_at=moment(NOON), offset=message.offset, **{**fields, "flows": ("f",), "tools": ("t", "u")}
    )
    assert message == expected


def test_episode_message_fields_come_from_the_message():
    record = say("a")
    message = decode_input(record.key, record.value, [], record.timestamp)
    assert set(orjson.loads(from_record(message, record, 1, b"").body.json)) == CARRIED


@pytest.mark.parametrize(
    ("roles", "turns"),
    [
        (["user"], 1),
        (["user", "assistant", "tool", "assistant"], 1),
        (["user", "assistant", "user", "assistant"], 2),
        (["user", "user"], 2),
        (["assistant", "tool"], 1),
        (["assistant", "user", "assistant"], 2),
    ],
)
def test_turns_begin_with_user_messages(roles, turns):
    assert only(*talk(roles)).turn_count == turns


def test_episodes_user_is_the_first_user_messages():
    episode = only(say("a", role="assistant", user_id="bot"), say("b", user_id="ann"), say("c", user_id="eve"))
    assert episode.user_id == "ann"


def test_episode_without_user_message_has_the_first_user():
    assert only(say("a", role="assistant", user_id="bot"), say("b", role="tool", user_id="api")).user_id == "bot"


def test_conversations_episode_has_its_tenant_and_no_agent():
    episode = only(say("a", tenant_id="acme", agent_id="helper"), tenant_id="acme")
    assert (episode.tenant_id, episode.agent_id) == ("acme", None)


def test_flows_and_tools_are_unique_in_first_use_order():
    episode = only(say("a", flows=["y", "x"], tools=["t"]), say("b", flows=["x", "z"], tools=["s", "t"]))
    assert episode.metrics.flows_activated == ("y", "x", "z")
    assert episode.metrics.tools_invoked == ("t", "s")


def test_sentiment_is_the_populations_over_scored_messages():
    felt = [-1, 0.5, 0.1]
    episode = only(*(say(f"m{i}", sentiment=s) for i, s in enumerate(felt)), say("z"))
    assert episode.metrics.average_sentiment == pytest.approx(mean(felt))
    assert episode.metrics.sentiment_variance == pytest.approx(pvariance(felt))


def test_sentiment_without_scores_is_null():
    found = only(say("a")).metrics
    assert (found.average_sentiment, found.sentiment_variance) == (None, None)


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
