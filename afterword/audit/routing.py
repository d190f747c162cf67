"""Which episodes a message must be in: one of its conversation, or with `scope = agent` one of each of its agents."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from afterword.audit.facts import Facts, Flush, Produced, scope_name
from afterword.streams.segmenter.agents import addressees, heard, left

Scopes = tuple[str, ...]
"""As `scope_name` says them: of an agent with a slash, which no other has."""


def expected_scopes(facts: Facts, accepted: Iterable[Produced]) -> Iterator[tuple[Produced, Scopes]]:
    """`accepted`: what the segmenter must have taken, in the order of the partitions."""
    if facts.max_agents is None:
        yield from ((produced, (scope_name(produced.conversation_id),)) for produced in accepted)
    elif "messages" in facts.truncated:  # whoever was active before the first record that is left is not known
        yield from _found_scopes(facts, accepted)
    else:
        yield from sorted(_of_agents(facts, accepted), key=lambda pair: pair[0].position)


def _of_agents(facts: Facts, accepted: Iterable[Produced]) -> Iterator[tuple[Produced, Scopes]]:
    talks: dict[str, Talk] = defaultdict(lambda: Talk(facts.max_agents or 1))
    events: list[Produced | Flush] = sorted([*accepted, *facts.flushed_agents], key=lambda event: event.position)
    for event in events:
        talk = talks[event.conversation_id]
        if isinstance(event, Flush):
            talk.active = left(talk.active, event.agent_id)
        else:
            yield from talk.take(event)
    found = _without_agent(facts)
    for produced, agent in (waited for talk in talks.values() for waited in talk.waited()):
        is_nobodys = any(produced.position.offset in offsets for offsets in found[produced.message])
        yield produced, (scope_name(produced.conversation_id, None if is_nobodys else agent),)


def _without_agent(facts: Facts) -> dict[bytes, list[range]]:
    """By message: between which offsets the episodes begin and end, or it is pending, that have it and no agent."""
    found: dict[bytes, list[range]] = defaultdict(list)
    messages = {produced.position: produced.message for produced in facts.produced}
    for position, scope in facts.pending:
        if "/" not in scope and position in messages:
            found[messages[position]].append(range(position.offset, position.offset + 1))
    for episode in facts.closed:
        if "/" not in episode.scope:
            for core in episode.core:
                found[core.message].append(range(episode.first_offset, episode.last_offset + 1))
    return found


class Talk:
    """A conversation's agents, as the log tells of them."""

    def __init__(self, max_agents: int) -> None:
        self.active: list[str] = []
        self._max_agents = max_agents
        self._waiting: list[Produced] = []
        self._adopted: list[tuple[Produced, str | None]] = []

    def take(self, produced: Produced) -> Iterator[tuple[Produced, Scopes]]:
        agent, active = produced.agent_id, self.active
        if agent is None and not active:
            self._waiting.append(produced)
            return
        if not active:
            self._adopted += [(waiting, agent) for waiting in self._waiting]
            self._waiting.clear()
        yield produced, tuple(scope_name(produced.conversation_id, each) for each in addressees(active, agent))
        self.active = heard(active, agent, self._max_agents).active

    def waited(self) -> list[tuple[Produced, str | None]]:
        """Messages that named no agent while none was active, and the first agent after them."""
        return [*self._adopted, *((waiting, None) for waiting in self._waiting)]


def _found_scopes(facts: Facts, accepted: Iterable[Produced]) -> Iterator[tuple[Produced, Scopes]]:
    found: dict[bytes, set[str]] = defaultdict(set)
    pending: dict[object, set[str]] = defaultdict(set)
    for episode in facts.closed:
        for core in episode.core:
            found[core.message].add(episode.scope)
    for waiting in facts.pending:
        pending[waiting.position].add(waiting.scope)
    for produced in accepted:
        scopes = found[produced.message] | pending[produced.position]
        yield produced, tuple(sorted(scopes)) or (scope_name(produced.conversation_id),)
