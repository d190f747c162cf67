"""Finds out which messages are repeats and, with `scope = agent`, which agents each message is for.

Both depend on the order of a conversation's messages, so they are computed by iterating over them.
"""

from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from afterword.operating.audit.evidence import Circumstances, Evidence, scope_name
from afterword.streams.segmenter.conversation import activated, deactivated, recipients

CLOCKS_APART_MS = 3_600_000


class Event(NamedTuple):
    """A message, or with `scope = agent` a flush or the deletion of a conversation, which change the active agents."""

    kind: str
    id: int
    conversation: str
    message: bytes
    partition: int
    offset: int
    record_ms: int
    agent: str | None


class Silence:
    """Decides from the records' timestamps when a conversation may have been forgotten. Clocks may be an hour apart.

    `forget_after_ms` is 0 if conversations are never forgotten.
    """

    def __init__(self, forget_after_ms: int) -> None:
        self._long_ms = max(forget_after_ms - CLOCKS_APART_MS, forget_after_ms // 2)
        self._last_ms = 0

    def ends_with(self, sent: Event) -> bool:
        """Return whether the message follows a silence that was long enough."""
        if not (self._long_ms and self._last_ms):
            return False
        return sent.record_ms <= 0 or sent.record_ms - self._last_ms >= self._long_ms

    def note(self, sent: Event) -> None:
        """Record an accepted message. Duplicates do not end a silence."""
        self._last_ms = max(self._last_ms, sent.record_ms)


def mark_repeats(evidence: Evidence, circumstances: Circumstances) -> None:
    """Mark messages that repeat an earlier one, as far back as the segmenter looks.

    A message that the segmenter may have forgotten in the meantime is no repeat if it is pending, or in an episode
    that begins after the earlier one.
    """
    candidates = evidence.rows("""
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation IN (
            SELECT conversation FROM standing WHERE NOT is_dead AND NOT skipped
            GROUP BY conversation, message HAVING COUNT(*) > 1
        )
        ORDER BY conversation, partition, offset
    """)
    found_again = """
        SELECT EXISTS (
            SELECT 1 FROM pending WHERE partition = :partition AND offset = :offset AND conversation_scope = :scope
        ) OR EXISTS (
            SELECT 1 FROM appearance
            WHERE message = :message AND first_offset > :after AND :offset BETWEEN first_offset AND last_offset
        )
    """
    for conversation, events in groupby(map(Event._make, candidates), key=attrgetter("conversation")):
        silence = Silence(circumstances.forget_after_ms)
        accepted: dict[bytes, tuple[int, int]] = {}  # each message's number and offset
        number = forgotten = 0  # messages with a number below `forgotten` may have been forgotten
        for sent in events:
            if silence.ends_with(sent):
                forgotten = number
            earlier, after = accepted.get(sent.message, (-1, -1))
            if earlier >= max(0, number - circumstances.dedupe_window):
                values = {**sent._asdict(), "after": after, "scope": scope_name(conversation)}
                if earlier >= forgotten or not evidence.value(found_again, values):
                    evidence.add("repeat", sent.id)
                    continue
            silence.note(sent)
            accepted[sent.message] = number, sent.offset
            number += 1
    evidence.flush()


def derive_expected(evidence: Evidence, circumstances: Circumstances) -> None:
    """Find the scopes that each message belongs to: its conversation, or each of its agents.

    Agents that were active before the oldest record or before a long silence are unknown. In that case a message
    belongs to the scopes in which it is found.
    """
    if circumstances.max_agents is not None:
        if not circumstances.messages_truncated:
            _expect_agents(evidence, circumstances.max_agents, circumstances.forget_after_ms)
        evidence.run_all("""
            INSERT INTO expected
            SELECT a.id, found.scope FROM accepted AS a JOIN appearance AS found ON found.message = a.message
            WHERE a.id NOT IN (SELECT message FROM expected)
            UNION
            SELECT a.id, p.scope FROM accepted AS a
            JOIN pending AS p ON p.partition = a.partition AND p.offset = a.offset AND p.conversation_scope = a.scope
            WHERE a.id NOT IN (SELECT message FROM expected) AND NOT p.handed_over;
        """)
    evidence.run_all(
        "INSERT INTO expected SELECT id, scope FROM accepted WHERE id NOT IN (SELECT message FROM expected)"
    )


def _expect_agents(evidence: Evidence, max_agents: int, forget_after_ms: int) -> None:
    found = evidence.rows("""
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent FROM accepted
        UNION ALL
        SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent FROM flush
        WHERE agent IS NOT NULL AND (partition, offset) NOT IN dead_message
        UNION ALL
        SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL FROM change
        WHERE message IS NULL AND (partition, offset) NOT IN dead_message
        ORDER BY 3, 5, 6
    """)
    stays_nobodys = """
        SELECT EXISTS (
            SELECT 1 FROM standing AS s JOIN pending AS p ON p.partition = s.partition AND p.offset = s.offset
            WHERE s.message = :message AND s.offset = :offset AND p.scope = :scope AND NOT p.handed_over
        ) OR EXISTS (
            SELECT 1 FROM appearance
            WHERE message = :message AND scope NOT LIKE '%/%' AND :offset BETWEEN first_offset AND last_offset
        )
    """
    for conversation, events in groupby(map(Event._make, found), key=attrgetter("conversation")):
        everyones = scope_name(conversation)
        for sent, agent, waited in _agents_of(events, max_agents, Silence(forget_after_ms)):
            values = {**sent._asdict(), "scope": everyones}
            nobodys = waited and evidence.value(stays_nobodys, values)
            evidence.add("expected", sent.id, everyones if nobodys else scope_name(conversation, agent))
    evidence.flush()


def _agents_of(events: Iterable[Event], max_agents: int, silence: Silence) -> list[tuple[Event, str | None, bool]]:
    """Reconstruct a conversation's agents from the log.

    Returns messages, each with an agent that it belongs to, and whether it waited until that agent was named. Returns
    nothing if active agents may have been forgotten in between.
    """
    active: list[str] = []
    known: list[tuple[Event, str | None, bool]] = []
    waiting: list[Event] = []
    for event in events:
        if event.kind == "flush":
            active = deactivated(active, event.agent or "")
        elif event.kind == "deletion":  # messages that waited for an agent are gone
            active = []
            known += [(waited, None, True) for waited in waiting]
            waiting = []
        else:
            if silence.ends_with(event):
                return []
            silence.note(event)
            if event.agent is None and not active:
                waiting.append(event)
                continue
            if not active:
                known += [(waited, event.agent, True) for waited in waiting]
                waiting = []
            known += [(event, agent, False) for agent in recipients(active, event.agent)]
            active, _ = activated(active, event.agent, max_agents)
    return known + [(waited, None, True) for waited in waiting]
