"""Finds out which messages are repeats and, with `scope = agent`, which agents each message is for.

Both depend on the order of a conversation's messages, so they are computed by iterating over them.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from afterword.operating.audit.evidence import Circumstances, Evidence, scope_name
from afterword.streams.segmenter.conversation import activated, deactivated, recipients

CLOCKS_APART_MS = 3_600_000


class Event(NamedTuple):
    """A message, or a flush or a conversation's deletion, because these change the active agents."""

    kind: str
    id: int
    conversation: str
    message: bytes
    partition: int
    offset: int
    record_ms: int
    agent: str | None


def derive_expected(evidence: Evidence, circumstances: Circumstances) -> None:
    """Mark the repeats, and find the scopes of all other messages: the conversation, or each of its agents.

    Agents that were active before the oldest record or before a long silence are unknown. In that case a message
    belongs to the scopes in which it is found.
    """
    events = evidence.rows(
        """
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent FROM standing
        WHERE NOT is_dead AND NOT skipped AND (:max_agents IS NOT NULL OR conversation IN (
            SELECT conversation FROM standing WHERE NOT is_dead AND NOT skipped
            GROUP BY conversation, message HAVING COUNT(*) > 1
        ))
        UNION ALL
        SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent FROM flush
        WHERE agent IS NOT NULL AND (partition, offset) NOT IN dead_message
        UNION ALL
        SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL FROM change
        WHERE message IS NULL AND (partition, offset) NOT IN dead_message
        ORDER BY 3, 5, 6
        """,
        vars(circumstances),
    )
    stays_nobodys = """
        SELECT EXISTS (
            SELECT 1 FROM standing AS s JOIN pending AS p ON p.partition = s.partition AND p.offset = s.offset
            WHERE s.message = :message AND s.offset = :offset AND p.scope = :scope AND NOT p.handed_over
        ) OR EXISTS (
            SELECT 1 FROM appearance
            WHERE message = :message AND scope NOT LIKE '%/%' AND :offset BETWEEN first_offset AND last_offset
        )
    """
    for conversation, found in groupby(map(Event._make, events), key=attrgetter("conversation")):
        accepted, everyones = list(_accepted(evidence, circumstances, found)), scope_name(conversation)
        if circumstances.max_agents is None or circumstances.messages_truncated:
            continue
        for sent, agent, waited in _agents_of(accepted, circumstances.max_agents):
            nobodys = waited and evidence.value(stays_nobodys, {**sent._asdict(), "scope": everyones})
            evidence.add("expected", sent.id, everyones if nobodys else scope_name(conversation, agent))
    evidence.run_all(
        """
        INSERT INTO expected
        SELECT a.id, found.scope FROM accepted AS a JOIN appearance AS found ON found.message = a.message
        WHERE :max_agents IS NOT NULL AND a.id NOT IN (SELECT message FROM expected)
        UNION
        SELECT a.id, p.scope FROM accepted AS a
        JOIN pending AS p ON p.partition = a.partition AND p.offset = a.offset AND p.conversation_scope = a.scope
        WHERE :max_agents IS NOT NULL AND a.id NOT IN (SELECT message FROM expected) AND NOT p.handed_over;
        INSERT INTO expected SELECT id, scope FROM accepted WHERE id NOT IN (SELECT message FROM expected);
    """,
        vars(circumstances),
    )


def _accepted(
    evidence: Evidence, circumstances: Circumstances, events: Iterable[Event]
) -> Iterator[tuple[Event, bool]]:
    """Mark a conversation's messages that repeat an earlier one, as far back as the segmenter looks; yield the others.

    Each comes with whether it follows a silence after which the segmenter may have forgotten the conversation, by the
    records' timestamps. Clocks may be an hour apart, and repeats do not end a silence. A message that may have been
    forgotten is not repeated by one that is pending, or in an episode that begins after it.
    """
    found_again = """
        SELECT EXISTS (
            SELECT 1 FROM pending WHERE partition = :partition AND offset = :offset AND conversation_scope = :scope
        ) OR EXISTS (
            SELECT 1 FROM appearance
            WHERE message = :message AND first_offset > :after AND :offset BETWEEN first_offset AND last_offset
        )
    """
    forget_ms = circumstances.forget_after_ms
    long_ms, last_ms = max(forget_ms - CLOCKS_APART_MS, forget_ms // 2), 0
    accepted: dict[bytes, tuple[int, int]] = {}  # each message's number and offset
    number = forgotten = 0  # messages with a number below `forgotten` may have been forgotten
    for sent in events:
        if sent.kind != "message":
            yield sent, False
            continue
        is_after_silence = bool(long_ms and last_ms) and (sent.record_ms <= 0 or sent.record_ms - last_ms >= long_ms)
        if is_after_silence:
            forgotten = number
        earlier, after = accepted.get(sent.message, (-1, -1))
        if earlier >= max(0, number - circumstances.dedupe_window):
            values = {**sent._asdict(), "after": after, "scope": scope_name(sent.conversation)}
            if earlier >= forgotten or not evidence.value(found_again, values):
                evidence.add("repeat", sent.id)
                continue
        last_ms = max(last_ms, sent.record_ms)
        accepted[sent.message] = number, sent.offset
        number += 1
        yield sent, is_after_silence


def _agents_of(accepted: Iterable[tuple[Event, bool]], max_agents: int) -> list[tuple[Event, str | None, bool]]:
    """Reconstruct a conversation's agents from the log.

    Returns messages, each with an agent that it belongs to, and whether it waited until that agent was named. Returns
    nothing if active agents may have been forgotten in between.
    """
    active: list[str] = []
    known: list[tuple[Event, str | None, bool]] = []
    waiting: list[Event] = []
    for event, is_after_silence in accepted:
        if is_after_silence:
            return []
        if event.kind == "flush":
            active = deactivated(active, event.agent or "")
        elif event.kind == "deletion":  # messages that waited for an agent are gone
            active = []
            known += [(waited, None, True) for waited in waiting]
            waiting = []
        elif event.agent is None and not active:
            waiting.append(event)
        else:
            if not active:
                known += [(waited, event.agent, True) for waited in waiting]
                waiting = []
            known += [(event, agent, False) for agent in recipients(active, event.agent)]
            active, _ = activated(active, event.agent, max_agents)
    return known + [(waited, None, True) for waited in waiting]
