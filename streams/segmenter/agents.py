"""Which agents of a conversation a message belongs to: pure functions over the list of those that are active.

An agent is active from the first message that names it until a flush that names it. The list is in the order in which
they were last named, so that the one at its head is the one to leave when there are too many.
"""

from collections.abc import Sequence
from typing import NamedTuple

from afterword.streams.segmenter.keys import NOBODY


class Roster(NamedTuple):
    """Who is active after a message, and who is not any more because of it."""

    active: list[str]
    displaced: list[str]


def addressees(active: Sequence[str], agent_id: str | None) -> list[str]:
    """The agent that is named, else all that are active; where there are none, whoever comes first: NOBODY."""
    if agent_id:
        return [agent_id]
    return list(active) or [NOBODY]


def heard(active: Sequence[str], agent_id: str | None, limit: int) -> Roster:
    """After a message that names the agent, if it names one; at most `limit` are active."""
    if not agent_id:
        return Roster(list(active), [])
    order = [*(agent for agent in active if agent != agent_id), agent_id]
    return Roster(order[-limit:], order[:-limit])


def left(active: Sequence[str], agent_id: str) -> list[str]:
    """After the agent has completed its work."""
    return [agent for agent in active if agent != agent_id]
