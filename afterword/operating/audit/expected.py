"""Finds the scopes that each message belongs to: none if it is a repeat, and with `scope = agent` one for each agent.

Both depend on the order of a conversation's messages, so they are computed by iterating over them.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from afterword.operating.audit.evidence import Evidence, scope_name
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


def derive_expected(evidence: Evidence) -> None:
    """Find the scopes of every message that the segmenter accepts: the conversation, or each of its agents."""
    evidence.run_all("""
        -- Conversations whose messages are read in order: those with repeats, or all of them with `scope = agent`
        CREATE TABLE in_order AS
        SELECT DISTINCT conversation FROM standing WHERE NOT is_dead AND NOT skipped
        GROUP BY conversation, message HAVING :max_agents IS NOT NULL OR COUNT(*) > 1;
        INSERT INTO expected
        SELECT id, scope FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation NOT IN (SELECT conversation FROM in_order);
    """)
    events = evidence.rows("""
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation IN (SELECT conversation FROM in_order)
        UNION ALL
        SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent FROM flush
        WHERE agent IS NOT NULL AND (partition, offset) NOT IN dead_message
        UNION ALL
        SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL FROM change
        WHERE message IS NULL AND (partition, offset) NOT IN dead_message
        ORDER BY 3, 5, 6
    """)
    for conversation, found in groupby(map(Event._make, events), key=attrgetter("conversation")):
        for sent, scope in _with_scopes(evidence, list(_accepted(evidence, found)), conversation):
            evidence.add("expected", sent.id, scope)


def _accepted(evidence: Evidence, events: Iterable[Event]) -> Iterator[tuple[Event, bool]]:
    """Yield a conversation's events, leaving out messages that repeat one within the segmenter's dedupe window.

    Each comes with whether it follows a silence after which the segmenter may have forgotten the conversation, by the
    records' timestamps. Clocks may be an hour apart, and repeats do not end a silence. A message that may have been
    forgotten is not repeated by one that is pending, or in an episode that begins after it.
    """
    found_again = """
        SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND (first_offset IS NULL OR first_offset > :after))
    """
    circumstances = evidence.circumstances
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
        if earlier >= max(0, number - circumstances.dedupe_window) and (
            earlier >= forgotten or not evidence.value(found_again, id=sent.id, after=after)
        ):
            continue
        last_ms = max(last_ms, sent.record_ms)
        accepted[sent.message] = number, sent.offset
        number += 1
        yield sent, is_after_silence


def _with_scopes(
    evidence: Evidence, accepted: Sequence[tuple[Event, bool]], conversation: str
) -> Iterator[tuple[Event, str]]:
    """Yield a conversation's accepted messages, each with a scope that it belongs to.

    Agents that were active before the oldest record or before a long silence are unknown. In that case a message
    belongs to the scopes in which it is found.
    """
    circumstances, everyones = evidence.circumstances, scope_name(conversation)
    if circumstances.max_agents is None:
        yield from ((sent, everyones) for sent, _ in accepted if sent.kind == "message")
        return
    if circumstances.messages_truncated or any(is_after_silence for _, is_after_silence in accepted):
        scopes = """
            SELECT scope FROM appearance WHERE message = :message
            UNION SELECT scope FROM place WHERE id = :id AND NOT handed_over
        """
        for sent, _ in accepted:
            if sent.kind == "message":
                found = [scope for (scope,) in evidence.rows(scopes, id=sent.id, message=sent.message)]
                yield from ((sent, scope) for scope in found or [everyones])
        return
    yield from _by_agent(evidence, [event for event, _ in accepted], conversation, circumstances.max_agents)


def _by_agent(
    evidence: Evidence, accepted: Iterable[Event], conversation: str, max_agents: int
) -> Iterator[tuple[Event, str]]:
    everyones = scope_name(conversation)
    stays_nobodys = "SELECT EXISTS (SELECT 1 FROM place WHERE id = :id AND scope = :everyones AND NOT handed_over)"
    active: list[str] = []
    waiting: list[Event] = []
    for event in accepted:
        if event.kind == "flush":
            active = deactivated(active, event.agent or "")
        elif event.kind == "deletion":
            active = []
            yield from ((waited, everyones) for waited in waiting)
            waiting = []
        elif event.agent is None and not active:
            waiting.append(event)
        else:
            if not active:  # what waited goes to this agent, unless its episode was closed before
                for waited in waiting:
                    is_nobodys = evidence.value(stays_nobodys, id=waited.id, everyones=everyones)
                    yield waited, everyones if is_nobodys else scope_name(conversation, event.agent)
                waiting = []
            yield from ((event, scope_name(conversation, agent)) for agent in recipients(active, event.agent))
            active, _ = activated(active, event.agent, max_agents)
    yield from ((waited, everyones) for waited in waiting)
