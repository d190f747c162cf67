"""State rebuilt from the last episodes gives no id twice, and puts no message into two episodes."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.rebuild import Last, ResumePoints
from afterword.schemas import EpisodeClosed
from afterword.streams.segmenter.state import NOBODY, Scope, State, decode_state, encode_state, scope_key
from faust_eos.transaction import Output
from tests.unit.segmenter.chat import EPISODES, Chat, Sent, closed, episodes, flush, limits, say, says

AGENTS = st.sampled_from([None, "x", "y", "z"])
SPOKEN = st.lists(st.tuples(st.sampled_from("cd"), AGENTS, st.booleans()), max_size=30)


def last_of(outgoing: Sequence[Output], records: Sequence[Sent], *, agents: bool = False) -> ResumePoints:
    found = ResumePoints(agents=agents)
    for sent in outgoing:
        if sent.topic == EPISODES:
            found.take_episode(Sent(sent.key, sent.value))
    for record in records:
        found.take_message(record)
    return found


def made_anew(found: ResumePoints, **fields: Any) -> Chat:
    rows = {
        scope_key(scope): encode_state(state)
        for states in found.resume_states().values()
        for scope, state in states.items()
    }
    return Chat(conversations=rows, **fields)


def spoken(lines: Sequence[tuple[str, str | None, bool]]) -> list[Sent]:
    """Return messages and flushes. Each message has its own id."""
    found = []
    for n, (conversation, agent, is_flush) in enumerate(lines):
        if is_flush:
            found.append(flush(conversation, agent_id=agent))
        else:
            found.append(say(f"m{n}", conversation_id=conversation, agent_id=agent))
    return numbered([*found, flush("c"), flush("d")])


def numbered(records: Sequence[Sent]) -> list[Sent]:
    return [Sent(**{**vars(record), "offset": n}) for n, record in enumerate(records)]


def check_numbers(found: Sequence[EpisodeClosed]) -> set[tuple[str, str]]:
    """Check that ordinals have no gap and no message is in two episodes of its scope; return scope and id of each."""
    ordinals, placed = defaultdict(list), []
    for episode in found:
        scope = episode.episode_id.rpartition(":")[0]
        ordinals[scope].append(episode.ordinal)
        placed += [(scope, message.id) for message in episode.messages]
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in ordinals.values())
    assert len(placed) == len(set(placed))
    return set(placed)


@given(SPOKEN, st.integers(0, 30), st.integers(0, 30), st.booleans())
def test_every_message_ends_in_one_episode_after_lost_state(lines, lost_at, expired, agents):
    records, rules = spoken(lines), limits(trigger=3, scope="agent" if agents else "conversation", max_agents=2)
    undisturbed = check_numbers(episodes(Chat(rules).process(records).outgoing))
    before = Chat(rules).process(records[:lost_at]).outgoing
    gone = 0 if agents else min(expired, lost_at)
    anew = made_anew(last_of(before, records[gone:], agents=agents), limits=rules, offset=gone)
    placed = check_numbers(episodes([*before, *anew.process(records[gone:]).outgoing]))
    assert placed == undisturbed if not gone else placed <= undisturbed


def test_ordinal_continues_after_the_messages_expired():
    before = Chat(limits(trigger=2)).process(says(*"abcdef")).outgoing
    [episode] = made_anew(last_of(before, []), limits=limits(trigger=2), offset=6).hear(*says(*"gh"))
    assert (episode.episode_id, closed([episode])) == ("c:4", [("g h", "trigger")])


def test_resent_message_is_still_a_duplicate():
    records = numbered([*says(*"abc"), say("a")])
    before = Chat(limits(trigger=2)).process(records).outgoing
    anew = made_anew(last_of(before, records), limits=limits(trigger=2))
    outcome = anew.process([*records, say("b"), say("d")])
    assert (outcome.duplicates, closed(episodes(outcome.outgoing))) == (2, [("c d", "trigger")])


def test_stored_episode_ends_at_its_last_message():
    records = numbered([*says(*"abc"), say("b")])
    found = ResumePoints()
    found.add("c", None, Last(7, None, "c:b", 500))
    for record in records:
        found.take_message(record)
    assert found.resume_states() == {3: {Scope("c"): State(None, last_ordinal=7, taken_to=2)}}


@pytest.mark.parametrize(("message", "offset", "taken_to"), [("b", 3, 4), ("gone", 1, 0)])
def test_episode_ends_where_its_message_was_taken(message, offset, taken_to):
    """An offset of another topic with that name is ignored."""
    found = ResumePoints()
    found.add("c", None, Last(7, None, f"c:{message}", offset))
    for record in numbered([*says(*"abc"), say("b")]):
        found.take_message(record)
    assert [state.taken_to for state in found.resume_states()[3].values()] == [taken_to]


def test_messages_of_stored_episodes_are_not_repeated():
    records, found = numbered(says(*"abcde")), ResumePoints()
    for ordinal, offset, message in ((1, 1, "b"), (3, 3, "d"), (2, 2, "c")):
        found.add("c", None, Last(ordinal, None, f"c:{message}", offset))
    for record in records:
        found.take_message(record)
    [episode] = made_anew(found, limits=limits(trigger=2)).hear(*records, say("f"))
    assert (episode.episode_id, closed([episode])) == ("c:4", [("e f", "trigger")])


def test_each_agent_and_nobody_continue_separately():
    found = ResumePoints(agents=True)
    for agent, ordinal in ((None, 2), ("x", 3)):
        found.add("c", agent, Last(ordinal, "t", f"c:m{ordinal}:t", ordinal))
    found.partitions["c"].add(0)
    states = {scope: (state.last_ordinal, state.agents) for scope, state in found.resume_states()[0].items()}
    assert states == {Scope("c"): (0, []), Scope("c", NOBODY): (2, None), Scope("c", "x"): (3, None)}


def test_end_of_processed_records_survives_the_row():
    state = State("t", last_ordinal=3, taken_to=12345)
    assert decode_state(encode_state(state)) == state
