"""The audit of what a real segmenter wrote: clean, until a record is missing or repeated."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.audit import Report, judge
from afterword.operating.evidence import Circumstances, SegmenterState, TopicReader, open_evidence
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import load_settings
from tests.unit.segmenter.chat import EPISODES, Chat, Sent, delete, delete_conversation, flush, limits, say

Line = tuple[str, str, str | None, int]
AGENTS = st.sampled_from([None, "x", "y", "z"])
SAID = st.tuples(st.just("say"), st.just("c"), AGENTS, st.integers(0, 8))
FLUSHED = st.tuples(st.just("flush"), st.just("c"), AGENTS, st.just(0))
MOST = st.sampled_from([None, 2])
WINDOW = st.integers(5, 9)
"""At least an episode. The segmenter also drops repeats of what is pending, of which the audit knows nothing."""
DELETED = st.tuples(st.sampled_from(["delete", "forget"]), st.just("c"), st.none(), st.integers(0, 8))


def sent(lines: Sequence[Line]) -> list[Sent]:
    records = []
    for kind, conversation, agent, number in lines:
        name = f"m{number}"
        match kind:
            case "say":
                records.append(say(name, f"text {number}", conversation_id=conversation, agent_id=agent))
            case "flush":
                records.append(flush(conversation, agent_id=agent))
            case "delete":
                records.append(delete(name, conversation_id=conversation))
            case _:
                records.append(delete_conversation(conversation))
    return [Sent(**{**vars(record), "offset": n}) for n, record in enumerate(records)]


def audited(chat: Chat, records: Sequence[Sent], closed: Sequence[Sent], circumstances: Circumstances) -> Report:
    kafka = load_settings().kafka
    with open_evidence() as evidence:
        evidence.add("consumed", "segmenter", 3, len(records))
        takes = TopicReader(evidence, kafka).takes()
        for record in records:
            takes[kafka.messages_topic](record)  # type: ignore[arg-type]  # it has all that is read of a record
        for record in closed:
            takes[kafka.episodes_topic](record)  # type: ignore[arg-type]  # it has all that is read of a record
        state = SegmenterState()
        for table, rows in ((MESSAGES, chat.messages), (CONVERSATIONS, chat.conversations)):
            for key, value in rows.items():
                state.take(table, Sent(key, value))  # type: ignore[arg-type]  # it has all that is read of a record
        state.add_to(evidence)
        evidence.circumstances = circumstances
        return judge(evidence)


def written(lines: Sequence[Line], circumstances: Circumstances, trigger: int) -> tuple[Chat, list[Sent], list[Sent]]:
    """Return a segmenter, what it read, and its records on `episode.closed`."""
    scope = "conversation" if circumstances.max_agents is None else "agent"
    chat = Chat(limits(trigger=trigger, scope=scope, max_agents=2, dedupe_window=circumstances.dedupe_window))
    records = sent(lines)
    outgoing = [one for one in chat.process(records).outgoing if one.topic == EPISODES]
    return (
        chat,
        records,
        [
            Sent(one.key, one.value, n, topic=EPISODES, partition=0, headers=tuple(one.headers))
            for n, one in enumerate(outgoing)
        ],
    )


@given(
    st.lists(st.one_of(SAID, SAID, SAID, FLUSHED), min_size=10, max_size=25), MOST, st.integers(1, 5), WINDOW, st.data()
)
def test_missing_or_repeated_episodes_are_found(lines, max_agents, trigger, window, data):
    circumstances = Circumstances(dedupe_window=window, max_agents=max_agents)
    chat, records, closed = written(lines, circumstances, trigger)
    report = audited(chat, records, closed, circumstances)
    assert report.clean, list(report.lines())
    if closed:
        chosen = data.draw(st.sampled_from(closed))
        again = Sent(**{**vars(chosen), "offset": len(closed)})
        assert "committed_twice" in audited(chat, records, [*closed, again], circumstances).findings
        others = [one for one in closed if one != chosen]
        assert "lost" in audited(chat, records, others, circumstances).findings


@given(st.lists(st.one_of(SAID, SAID, FLUSHED, DELETED), min_size=10, max_size=25), MOST, st.integers(1, 5))
def test_segmenter_output_is_clean_despite_deleted_messages(lines, max_agents, trigger):
    circumstances = Circumstances(max_agents=max_agents)
    report = audited(*written(lines, circumstances, trigger), circumstances)
    assert report.clean, list(report.lines())
