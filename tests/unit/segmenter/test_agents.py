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


class TestApart:
    def test_pending_messages_triggers_and_ordinals_are_per_agent(self):
        chat = of_agents(trigger=2)
        found = chat.hear(*[say(f"{agent}{n}", agent_id=agent) for n in range(4) for agent in ("x", "y")])
        assert told(found) == [
            ("c/x:1", "x0 x1", "trigger"),
            ("c/y:1", "y0 y1", "trigger"),
            ("c/x:2", "x2 x3", "trigger"),
            ("c/y:2", "y2 y3", "trigger"),
        ]
        assert {(e.conversation_id, e.agent_id) for e in found} == {("c", "x"), ("c", "y")}

    def test_agent_ids_are_escaped(self):
        (episode,) = of_agents(trigger=1).hear(say("a", conversation_id="x/y", agent_id="a:b%"))
        assert (episode.episode_id, episode.agent_id) == ("x%2Fy/a%3Ab%25:1", "a:b%")

    def test_message_id_is_unique_across_agents(self):
        outcome = of_agents().process([say("a", agent_id="x"), say("a", agent_id="y"), say("a")])
        assert (outcome.messages, outcome.duplicates) == (1, 2)


class TestWhoIsAddressed:
    def test_message_without_agent_goes_to_all_active_ones(self):
        chat = of_agents()
        found = chat.hear(say("a", agent_id="x"), say("b", agent_id="y"), say("c"), say("d", agent_id="x"), flush())
        assert told(found) == [("c/y:1", "b c", "flush"), ("c/x:1", "a c d", "flush")]

    def test_message_before_any_agent_waits_for_the_first(self):
        chat = of_agents()
        found = chat.hear(say("a"), say("b"), say("c", agent_id="x"), say("d"), say("e", agent_id="y"), flush())
        assert told(found) == [("c/x:1", "a b c d", "flush"), ("c/y:1", "e", "flush")]

    def test_message_no_agent_took_makes_an_unaddressed_episode(self):
        chat = of_agents(idle_seconds=100)
        chat.hear(*says("a", "b"))
        assert told(chat.wait(100)) == [("c:1", "a b", "idle")]
        assert told(chat.hear(say("c"), flush())) == [("c:2", "c", "flush")]

    def test_agent_after_silence_gets_no_waiting_messages(self):
        alive, dead = of_agents(idle_seconds=100), of_agents(idle_seconds=100)
        talk = [say("a"), say("b", agent_id="x", at=101, stamped=101), flush()]
        seen_alive = alive.hear(talk[0]) + alive.wait(100) + alive.hear(*talk[1:])
        seen_dead = dead.hear(*talk)
        assert told(seen_alive) == told(seen_dead) == [("c:1", "a", "idle"), ("c/x:1", "b", "flush")]

    def test_fast_clock_opens_no_gap_among_waiting_messages(self):
        chat = of_agents(idle_seconds=100)
        ahead = say("b", at=5000, stamped=1)
        later = [say(name, at=at, stamped=at) for name, at in (("c", 60), ("d", 120))]
        found = chat.hear(say("a"), ahead, *later, say("e", at=130, stamped=130, agent_id="x"), flush())
        assert told(found) == [("c/x:1", "a b c d e", "flush")]

    def test_waiting_messages_keep_their_boundaries(self):
        chat = of_agents(min_episode_size=2)
        heard_before = [*says("a", "b"), say("c", is_continuation=False), say("d", is_continuation=False)]
        found = chat.hear(*heard_before, say("e", agent_id="x"), flush())
        assert told(found) == [("c/x:1", "a b", "topic_shift"), ("c/x:2", "c d e", "flush")]

    def test_messages_taken_by_an_agent_no_longer_wait(self):
        chat = of_agents(overlap=2)
        chat.hear(say("a"), say("b", agent_id="x"), flush(agent_id="x"))
        assert told(chat.hear(say("c"), flush())) == [("c:1", "c", "flush")]
        assert chat.wait(10_000) == []

    @pytest.mark.parametrize(("waited", "overlap"), [(["b"], []), ([], ["a"])])
    def test_unaddressed_episodes_overlap_unless_an_agent_took_some(self, waited, overlap):
        chat = of_agents(overlap=1)
        chat.hear(say("a"), flush(), *says(*waited), say("x", agent_id="x"), flush(agent_id="x"))
        (episode,) = chat.hear(say("c"), flush())
        assert (episode.episode_id, [m.id for m in episode.overlap]) == ("c:2", overlap)

    def test_waiting_time_begins_with_the_oldest_waiting_message(self):
        chat = of_agents(trigger={"seconds": 30})
        assert chat.hear(say("a"), say("b", at=1, agent_id="x"), flush(agent_id="x"))
        assert chat.hear(say("c", at=50), say("d", at=79)) == []
        assert told(chat.hear(say("e", at=80))) == [("c:1", "c d e", "trigger")]

    def test_surplus_agent_is_closed_and_leaves(self):
        chat = of_agents(max_agents=2)
        chat.hear(say("a", agent_id="x"), say("b", agent_id="y"))
        assert told(chat.hear(say("c", agent_id="z"))) == [("c/x:1", "a", "idle")]
        assert told(chat.hear(say("d"), flush())) == [("c/y:1", "b d", "flush"), ("c/z:1", "c d", "flush")]
        assert told(chat.hear(say("e", agent_id="x"), flush(agent_id="x"))) == [("c/x:2", "e", "flush")]


class TestFlush:
    def test_flush_of_an_agent_closes_that_agents_messages(self):
        chat = of_agents()
        assert told(chat.hear(say("a", agent_id="x"), say("b", agent_id="y"), flush(agent_id="x"))) == [
            ("c/x:1", "a", "flush")
        ]
        assert told(chat.hear(flush())) == [("c/y:1", "b", "flush")]

    def test_completed_agent_is_no_longer_active(self):
        chat = of_agents()
        chat.hear(say("a", agent_id="x"), say("b", agent_id="y"), flush(agent_id="x"))
        assert told(chat.hear(say("c"), flush())) == [("c/y:1", "b c", "flush")]

    def test_flush_without_agent_closes_all_and_keeps_them_active(self):
        chat = of_agents()
        found = chat.hear(say("a", agent_id="x"), say("b", agent_id="y"), flush())
        assert told(found) == [("c/x:1", "a", "flush"), ("c/y:1", "b", "flush")]
        found = chat.hear(say("c"), flush())
        assert told(found) == [("c/x:2", "c", "flush"), ("c/y:2", "c", "flush")]

    def test_flush_of_an_unknown_agent_does_nothing(self):
        chat = of_agents()
        assert chat.hear(flush(agent_id="x"), flush()) == []
        assert chat.hear(say("a", agent_id="x"), flush(agent_id="y")) == []
        assert list(chat.conversations) == [b"c", b"c\xffx"]


class TestState:
    def test_agent_rows_are_removed_when_empty(self):
        chat = of_agents(trigger=5, dedupe_window=10, overlap=2)
        for n in range(200):
            chat.process([say(f"{n}", agent_id=[None, "x", "y"][n % 3])])
            ids_and_digests, bodies = 2 * 10, 2 * (5 + 2)
            assert len(chat.messages) <= ids_and_digests + bodies
        agents, root, waiting = 2, 1, 1
        assert len(chat.conversations) == agents + root + waiting

    @pytest.mark.parametrize(("before", "after"), [("conversation", "agent"), ("agent", "conversation")])
    def test_state_of_the_other_scope_stops_the_worker(self, before, after):
        chat = Chat(limits(scope=before))
        chat.hear(say("a", agent_id="x"))
        chat.limits = limits(scope=after)
        with pytest.raises(StateUnreadable, match=r"another episodes\.scope"):
            chat.hear(say("b", agent_id="x"))
        chat.now_ms += 10**9
        with pytest.raises(StateUnreadable, match=r"another episodes\.scope"):
            chat.tick(list(chat.conversations))


def test_two_deployments_segment_messages_by_their_own_scope():
    talk = [say("a"), say("b", agent_id="x"), say("c", agent_id="y"), say("d"), flush()]
    whole, apart = Chat(limits()), of_agents()
    assert told(whole.hear(*talk)) == [("c:1", "a b c d", "flush")]
    assert told(apart.hear(*talk)) == [("c/x:1", "a b d", "flush"), ("c/y:1", "c d", "flush")]


def test_episode_closed_by_time_names_its_agent():
    chat = of_agents(idle_seconds=10)
    chat.hear(say("a", agent_id="x"))
    chat.now_ms += 10_000
    (outgoing,) = chat.tick([b"c\xffx"]).outgoing
    (episode,) = episodes([outgoing])
    assert (outgoing.key, episode.agent_id) == (b"c", "x")
