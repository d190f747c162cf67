"""Finds out which messages are repeats and, with `scope = agent`, which agents each message is for.

Both depend on the order of a conversation's messages, so they are computed by iterating over them.
"""

from collections.abc import Callable
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from afterword.operating.audit.evidence import Circumstances, Evidence, scope_name
from afterword.streams.segmenter.conversation import activated, deactivated, recipients

CLOCKS_APART_MS = 3_600_000


class Sent(NamedTuple):
    """A message, reduced to what the rules below need."""

    id: int
    conversation: str
    message: bytes
    partition: int
    offset: int
    record_ms: int
    agent: str | None


def mark_repeats(evidence: Evidence, circumstances: Circumstances) -> None:
    """Mark messages that repeat an earlier one, as far back as the segmenter looks."""
    candidates = evidence.rows("""
        SELECT id, conversation, message, partition, offset, record_ms, agent FROM standing
        WHERE NOT is_dead AND NOT skipped AND conversation IN (
            SELECT conversation FROM standing WHERE NOT is_dead AND NOT skipped
            GROUP BY conversation, message HAVING COUNT(*) > 1
        )
        ORDER BY conversation, partition, offset
    """)
    repeats = []

    def is_found(sent: Sent, after: int) -> bool:
        values = {**sent._asdict(), "after": after, "scope": scope_name(sent.conversation)}
        return bool(evidence.count(_FOUND_AGAIN, values))

    for _, sents in groupby(map(Sent._make, candidates), key=attrgetter("conversation")):
        recent = RecentMessages(circumstances.dedupe_window, Silence(circumstances.forget_after_ms), is_found)
        repeats += [(sent.id,) for sent in sents if not recent.takes(sent)]
    evidence.run_many("UPDATE standing SET is_repeat = 1 WHERE id = ?", repeats)


_FOUND_AGAIN = """
SELECT EXISTS (
    SELECT 1 FROM pending WHERE partition = :partition AND offset = :offset AND conversation_scope = :scope
) OR EXISTS (
    SELECT 1 FROM core JOIN closed ON closed.number = core.episode
    WHERE core.message = :message AND closed.first_offset > :after
    AND :offset BETWEEN closed.first_offset AND closed.last_offset
)
"""
"""Selects whether a message is pending, or in an episode that begins after the offset `after`."""


class Silence:
    """Decides from the records' timestamps when a conversation may have been forgotten. Clocks may be an hour apart.

    `forget_after_ms` is 0 if conversations are never forgotten.
    """

    def __init__(self, forget_after_ms: int) -> None:
        self._long_ms = max(forget_after_ms - CLOCKS_APART_MS, forget_after_ms // 2)
        self._last_ms = 0

    def ends_with(self, sent: Sent) -> bool:
        """Return whether the message follows a silence that was long enough."""
        if not (self._long_ms and self._last_ms):
            return False
        return sent.record_ms <= 0 or sent.record_ms - self._last_ms >= self._long_ms

    def note(self, sent: Sent) -> None:
        """Record an accepted message. Duplicates do not end a silence."""
        self._last_ms = max(self._last_ms, sent.record_ms)


class RecentMessages:
    """The last messages that were accepted in a conversation."""

    def __init__(self, size: int, silence: Silence, is_found: Callable[[Sent, int], bool]) -> None:
        self._size = size
        self._silence = silence
        self._is_found = is_found
        self._next = 0
        self._forgotten = 0
        """Messages before this number may have been forgotten."""
        self._seen: dict[bytes, tuple[int, int]] = {}
        """Number and offset of each message."""

    def takes(self, sent: Sent) -> bool:
        """Accept a message. False for a repeat within the window, unless it was forgotten and is found again."""
        if self._silence.ends_with(sent):
            self._forgotten = self._next
        number, offset = self._seen.get(sent.message, (-1, -1))
        if number >= max(0, self._next - self._size) and not (
            number < self._forgotten and self._is_found(sent, offset)
        ):
            return False
        self._silence.note(sent)
        self._seen[sent.message] = self._next, sent.offset
        self._next += 1
        return True


def derive_expected(evidence: Evidence, circumstances: Circumstances) -> None:
    """Build the table of the scopes that each message belongs to: its conversation, or each of its agents.

    Agents that were active before the oldest record or before a long silence are unknown. In that case a message
    belongs to the scopes in which it is found.
    """
    evidence.run("""
        CREATE VIEW accepted AS SELECT * FROM standing WHERE NOT is_dead AND NOT skipped AND NOT is_repeat
    """)
    evidence.run("CREATE TABLE expected (id, scope)")
    if circumstances.max_agents is not None:
        if not circumstances.messages_truncated:
            _expect_agents(evidence, circumstances.max_agents, circumstances.forget_after_ms)
        evidence.run("""
            INSERT INTO expected
            SELECT a.id, closed.scope FROM accepted AS a
            JOIN core ON core.message = a.message JOIN closed ON closed.number = core.episode
            WHERE a.id NOT IN (SELECT id FROM expected)
            UNION
            SELECT a.id, p.scope FROM accepted AS a
            JOIN pending AS p ON p.partition = a.partition AND p.offset = a.offset AND p.conversation_scope = a.scope
            WHERE a.id NOT IN (SELECT id FROM expected) AND NOT p.handed_over
        """)
    evidence.run("""
        INSERT INTO expected SELECT id, scope FROM accepted WHERE id NOT IN (SELECT id FROM expected)
    """)


class Event(NamedTuple):
    """An event that may change which of a conversation's agents are active: a message, a flush, or its deletion."""

    kind: str
    sent: Sent


def _expect_agents(evidence: Evidence, max_agents: int, forget_after_ms: int) -> None:
    found = evidence.rows("""
        SELECT 'message', id, conversation, message, partition, offset, record_ms, agent FROM accepted
        UNION ALL
        SELECT 'flush', 0, conversation, x'', partition, offset, 0, agent FROM flush AS f
        WHERE agent IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM dead_letter WHERE kind = 'message' AND partition = f.partition AND offset = f.offset
        )
        UNION ALL
        SELECT 'deletion', 0, conversation, x'', partition, offset, 0, NULL FROM change AS c
        WHERE message IS NULL AND NOT EXISTS (
            SELECT 1 FROM dead_letter WHERE kind = 'message' AND partition = c.partition AND offset = c.offset
        )
        ORDER BY 3, 5, 6
    """)
    events = (Event(kind, Sent._make(sent)) for kind, *sent in found)
    for conversation, group in groupby(events, key=lambda event: event.sent.conversation):
        talk = Talk(max_agents, Silence(forget_after_ms))
        for event in group:
            talk.take(event)
        if talk.is_known:
            named = [(sent.id, scope_name(conversation, agent)) for sent, agent in talk.messages]
            waited = [
                (sent.id, scope_name(conversation, None if _is_nobodys(evidence, sent) else agent))
                for sent, agent in talk.waited
            ]
            evidence.run_many("INSERT INTO expected VALUES (?, ?)", [*named, *waited])


class Talk:
    """A conversation's agents, as reconstructed from the log."""

    def __init__(self, max_agents: int, silence: Silence) -> None:
        self.is_known = True
        """False if active agents may have been forgotten in between."""
        self.messages: list[tuple[Sent, str | None]] = []
        """Messages, each with an agent that it is for."""
        self.waited: list[tuple[Sent, str | None]] = []
        """Messages that named no agent while none was active, each with the first agent after it."""
        self._active: list[str] = []
        self._max_agents = max_agents
        self._silence = silence

    def take(self, event: Event) -> None:
        sent = event.sent
        if event.kind == "flush":
            self._active = deactivated(self._active, sent.agent or "")
        elif event.kind == "deletion":
            self._active, self._adopted = [], len(self.waited)
        else:
            self._take_message(sent)

    _adopted = 0
    """Number of messages in `waited` that no later agent gets."""

    def _take_message(self, sent: Sent) -> None:
        self.is_known = self.is_known and not self._silence.ends_with(sent)
        self._silence.note(sent)
        if sent.agent is None and not self._active:
            self.waited.append((sent, None))
            return
        if not self._active:
            self.waited[self._adopted :] = [(waiting, sent.agent) for waiting, _ in self.waited[self._adopted :]]
            self._adopted = len(self.waited)
        self.messages += [(sent, agent) for agent in recipients(self._active, sent.agent)]
        self._active = activated(self._active, sent.agent, self._max_agents).active


def _is_nobodys(evidence: Evidence, sent: Sent) -> bool:
    return bool(evidence.count(_NOBODYS, {**sent._asdict(), "scope": scope_name(sent.conversation)}))


_NOBODYS = """
SELECT EXISTS (
    SELECT 1 FROM standing AS s JOIN pending AS p ON p.partition = s.partition AND p.offset = s.offset
    WHERE s.message = :message AND s.offset = :offset AND p.scope = :scope AND NOT p.handed_over
) OR EXISTS (
    SELECT 1 FROM core JOIN closed ON closed.number = core.episode
    WHERE core.message = :message AND closed.scope NOT LIKE '%/%'
    AND :offset BETWEEN closed.first_offset AND closed.last_offset
)
"""
