"""To whom a conversation's messages go: to the conversation as a whole, or to its agents."""

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from afterword.schemas import CloseReason
from afterword.streams.segmenter.agents import addressees, heard, left
from afterword.streams.segmenter.episodes import Closed
from afterword.streams.segmenter.keys import NOBODY, Scope
from afterword.streams.segmenter.rules import Rules, is_silent
from afterword.streams.segmenter.state import State
from afterword.streams.segmenter.thread import Taken, Thread


class Arrival(NamedTuple):
    """A message that is no duplicate, and what its conversation goes by."""

    message: Taken
    agent_id: str | None
    tenant_id: str | None
    rules: Rules
    now_ms: int
    """Wall clock, milliseconds since 1970."""


class Conversation(Protocol):
    """Both return the episodes that are closed, in order."""

    def take(self, arrival: Arrival) -> list[Closed]: ...
    def flush(self, agent_id: str | None) -> list[Closed]: ...


class Whole:
    """One thread, whoever speaks."""

    def __init__(self, thread: Thread) -> None:
        self._thread = thread

    def take(self, arrival: Arrival) -> list[Closed]:
        self._thread.remember(arrival.message.digest)
        return self._thread.append(arrival.message, arrival.rules, arrival.tenant_id, arrival.now_ms)

    def flush(self, _: str | None) -> list[Closed]:
        return self._thread.close("flush")


class OfAgents:
    """A thread for each agent. `root` remembers ids and active agents, and never has anything pending itself.

    `thread`: that of an agent; of NOBODY, of what waits for the first one. An agent that is not active has nothing
    pending, so that whatever is pending is found by the list of those that are.
    """

    def __init__(self, root: Thread, thread: Callable[[Scope], Thread], max_agents: int) -> None:
        self._root = root
        self._thread = thread
        self._max_agents = max_agents

    def take(self, arrival: Arrival) -> list[Closed]:
        self._root.remember(arrival.message.digest)
        self._root.pass_on(arrival.message.digest, arrival.tenant_id)
        before = self._active
        roster = heard(before, arrival.agent_id, self._max_agents)
        closed = self._close(roster.displaced, "idle")
        if arrival.agent_id and not before:
            closed += self._adopt(arrival.agent_id, arrival)
        for agent in addressees(before, arrival.agent_id):
            closed += self._append(agent, arrival.message, arrival)
        self._note(roster.active)
        return closed

    def flush(self, agent_id: str | None) -> list[Closed]:
        """Closes what is pending of the agent, which is not active any more; of all when none is named."""
        if not agent_id:
            return self._close(addressees(self._active, None), "flush")
        if agent_id not in self._active:
            return []
        self._note(left(self._active, agent_id))
        return self._close([agent_id], "flush")

    def _adopt(self, agent: str, arrival: Arrival) -> list[Closed]:
        """What waited becomes the agent's, unless it has waited too long: then a living worker has closed it before."""
        waiting = self._of(NOBODY)
        if waiting.state is None or not waiting.state.pending_messages:
            return []
        if is_silent(waiting.state, arrival.message.facts, arrival.rules.limits):
            return waiting.close("idle")
        return [done for message in waiting.hand_over() for done in self._append(agent, message, arrival)]

    def _append(self, agent: str, message: Taken, arrival: Arrival) -> list[Closed]:
        return self._of(agent).append(message, arrival.rules, arrival.tenant_id, arrival.now_ms)

    def _close(self, agents: Iterable[str], reason: CloseReason) -> list[Closed]:
        return [done for agent in agents for done in self._of(agent).close(reason)]

    def _of(self, agent: str) -> Thread:
        return self._thread(Scope(self._root.scope.conversation_id, agent))

    @property
    def _active(self) -> list[str]:
        return (self._root.state and self._root.state.agents) or []

    def _note(self, active: list[str]) -> None:
        if self._root.state:
            self._root.state = self._root.state._replace(agents=active)


def fits(state: State, scope: Scope, of_agents: bool) -> bool:
    """Whether a row was made with this setting of `episodes.scope`."""
    is_root = state.agents is not None
    return is_root == (of_agents and scope.agent_id is None) and (of_agents or scope.agent_id is None)
