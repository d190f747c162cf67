"""Episodes of each agent of a conversation, with `scope = agent`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import StateUnreadable
from afterword.streams.segmenter.conversation import activated, deactivated, recipients
from afterword.streams.segmenter.state import NOBODY
from tests.unit.segmenter.chat import Chat, episodes, flush, ids, limits, say, says

AGENT_IDS = st.sampled_from(["a", "b", "c", "d"])


def of_agents(**changed: object) -> Chat:
    return Chat(limits(scope="agent", **changed))


def told(found):
    return [(e.episode_id, ids(e), e.close_reason) for e in found]


class TestRoster:
    def test_addressed_message_reaches_its_agent_only(self):
        assert recipients(["a", "b"], "c") == ["c"]

    @pytest.mark.parametrize("nobody", [None, ""])
    def test_unaddressed_message_reaches_all_active_agents_or_waits(self, nobody):
        assert recipients(["a", "b"], nobody) == ["a", "b"]
        assert recipients([], nobody) == [NOBODY]

    @given(st.lists(AGENT_IDS, unique=True), st.one_of(st.none(), AGENT_IDS), st.integers(1, 4))
    def test_agents_leave_visibly_and_never_exceed_the_limit(self, known, agent, limit):
        everybody = {*known[:limit], agent} - {None}
        active, displaced = activated(known[:limit], agent, limit)
        assert {*active, *displaced} == everybody
        assert len(active) == min(len(everybody), limit)
        assert agent is None or active[-1] == agent

    def test_named_agent_is_the_last_to_be_displaced(self):
        assert activated(["a", "b", "c"], "a", 3) == (["b", "c", "a"], [])
        assert activated(["b", "c", "a"], "d", 3) == (["c", "a", "d"], ["b"])
        assert deactivated(["b", "c"], "b") == ["c"]


@pytest.mark.parametrize(
    ("changed", "talk", "found"),
    [
        (  # a clock that is fast opens no gap among waiting messages
            {"idle_seconds": 100},
            [say("a"), say("b", at=5000, stamped=1), *(say(str(n), at=n, stamped=n) for n in (60, 120)),
             say("e", at=130, stamped=130, agent_id="x"), flush()],
            [("c/x:1", "a b 60 120 e", "flush")],
        ),
        (  # waiting messages keep their boundaries
            {"min_episode_size": 2},
            [*says("a", "b"), *says("c", "d", is_continuation=False), say("e", agent_id="x"), flush()],
            [("c/x:1", "a b", "topic_shift"), ("c/x:2", "c d e", "flush")],
        ),
        (  # the time to wait begins with the oldest waiting message
            {"trigger": {"seconds": 30}},
            [say("a"), say("b", at=1, agent_id="x"), flush(agent_id="x"), *(say(str(n), at=n) for n in (50, 79, 80))],
            [("c/x:1", "a b", "flush"), ("c:1", "50 79 80", "trigger")],
        ),
        (  # a flush that names an agent closes its messages alone, and it is active no longer
            {},
            [say("a", agent_id="x"), say("b", agent_id="y"), flush(agent_id="x"), say("c"), flush()],
            [("c/x:1", "a", "flush"), ("c/y:1", "b c", "flush")],
        ),
    ],
)  # fmt: skip
def test_episodes_are_those_of_their_agents(changed, talk, found):
    assert told(of_agents(**changed).hear(*talk)) == found


def test_agent_ids_are_escaped():
    (episode,) = of_agents(trigger=1).hear(say("a", conversation_id="x/y", agent_id="a:b%"))
    assert (episode.episode_id, episode.agent_id) == ("x%2Fy/a%3Ab%25:1", "a:b%")


def test_message_no_agent_took_makes_an_unaddressed_episode():
    chat = of_agents(idle_seconds=100)
    chat.hear(*says("a", "b"))
    assert told(chat.wait(100)) == [("c:1", "a b", "idle")]
    assert told(chat.hear(say("c"), flush())) == [("c:2", "c", "flush")]


def test_agent_after_silence_gets_no_waiting_messages():
    alive, dead = of_agents(idle_seconds=100), of_agents(idle_seconds=100)
    talk = [say("a"), say("b", agent_id="x", at=101, stamped=101), flush()]
    seen_alive = alive.hear(talk[0]) + alive.wait(100) + alive.hear(*talk[1:])
    assert told(seen_alive) == told(dead.hear(*talk)) == [("c:1", "a", "idle"), ("c/x:1", "b", "flush")]


@pytest.mark.parametrize(("waited", "overlap"), [(["b"], []), ([], ["a"])])
def test_unaddressed_episodes_overlap_unless_an_agent_took_some(waited, overlap):
    chat = of_agents(overlap=1)
    chat.hear(say("a"), flush(), *says(*waited), say("x", agent_id="x"), flush(agent_id="x"))
    (episode,) = chat.hear(say("c"), flush())
    assert (episode.episode_id, [m.id for m in episode.overlap]) == ("c:2", overlap)


def test_flush_of_an_unknown_agent_does_nothing():
    chat = of_agents()
    assert chat.hear(flush(agent_id="x"), flush(), say("a", agent_id="x"), flush(agent_id="y")) == []
    assert list(chat.conversations) == [b"c", b"c\xffx"]


@pytest.mark.parametrize(("before", "after"), [("conversation", "agent"), ("agent", "conversation")])
def test_state_of_the_other_scope_stops_the_worker(before, after):
    chat = Chat(limits(scope=before))
    chat.hear(say("a", agent_id="x"))
    chat.limits = limits(scope=after)
    with pytest.raises(StateUnreadable, match=r"another episodes\.scope"):
        chat.hear(say("b", agent_id="x"))
    chat.now_ms += 10**9
    with pytest.raises(StateUnreadable, match=r"another episodes\.scope"):
        chat.tick(list(chat.conversations))


def test_episode_closed_by_time_names_its_agent():
    chat = of_agents(idle_seconds=10)
    chat.hear(say("a", agent_id="x"))
    chat.now_ms += 10_000
    (outgoing,) = chat.tick([b"c\xffx"]).outgoing
    (episode,) = episodes([outgoing])
    assert (outgoing.key, episode.agent_id) == (b"c", "x")
