"""Deterministic ids: repeating an operation yields the same id."""

from hashlib import blake2b
from uuid import UUID, uuid5

POINT_NAMESPACE = UUID("8b0f4b0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f")
"""Namespace of the points in Qdrant. It must never change, or every point would get a second id."""


def escape(part: str) -> str:
    """Percent-encode separators in one part of a composite id."""
    return part.replace("%", "%25").replace(":", "%3A").replace("/", "%2F")


def unescape(part: str) -> str:
    """Reverse `escape`."""
    return part.replace("%3A", ":").replace("%2F", "/").replace("%25", "%")


def message_key(conversation_id: str, message_id: str, tenant_id: str | None = None) -> str:
    """Return a message's `_id` in MongoDB. Message ids are only unique per conversation and tenant."""
    key = f"{escape(conversation_id)}:{escape(message_id)}"
    return key if tenant_id is None else f"{key}:{escape(tenant_id)}"


def user_digest(user_id: str) -> str:
    """Return what is kept of a user's id where the id itself must not be, because erasures do not look there."""
    return blake2b(user_id.encode(), digest_size=16).hexdigest()


def episode_id(conversation_id: str, ordinal: int, agent_id: str | None = None) -> str:
    """Return `conversation:ordinal`, or `conversation/agent:ordinal` if episodes are kept per agent."""
    scope = "" if agent_id is None else f"/{escape(agent_id)}"
    return f"{escape(conversation_id)}{scope}:{ordinal}"


def conversation_of_episode(episode: str) -> str:
    """Return the conversation of an `episode_id`."""
    return unescape(episode.rpartition(":")[0].partition("/")[0])


def scope_id(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the id of a conversation, or of one agent's part of it, for ordinals, counts and rolling summaries.

    With an agent it is `conversation//agent`, each part percent-encoded. Without one it contains no slash, because `%`
    and `/` in the conversation's id are percent-encoded.
    """
    if agent_id is None:
        return conversation_id.replace("%", "%25").replace("/", "%2F")
    return f"{escape(conversation_id)}//{escape(agent_id)}"


def conversation_of_scope(scope: str) -> tuple[str, str | None]:
    """Return the conversation and, if there is one, the agent of a `scope_id`."""
    conversation, separator, agent = scope.partition("//")
    return unescape(conversation), unescape(agent) if separator else None


def event_id(episode: str, revision: int) -> str:
    """Return the id of a `summary.created`. Repeated announcements of one event carry the same id."""
    return f"{episode}:{revision}"


def row_id(conversation_id: str, row: int) -> str:
    """Return the `_id` of a row in the rolling summary of a `scope_id`."""
    return f"{escape(conversation_id)}:{row}"


def point_id(episode: str) -> str:
    """Return an episode's id in Qdrant, the UUIDv5 of its `episode_id`."""
    return str(uuid5(POINT_NAMESPACE, episode))
