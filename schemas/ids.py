"""Deterministic ids: repeating an operation yields the same id."""

from uuid import UUID, uuid5

POINT_NAMESPACE = UUID("8b0f4b0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f")
"""Namespace of the points in Qdrant; it never changes, or every point would get a second id."""


def escape(part: str) -> str:
    """Percent-encode the separators in one part of a composite id."""
    return part.replace("%", "%25").replace(":", "%3A").replace("/", "%2F")


def unescape(part: str) -> str:
    """Decode what `escape` encoded."""
    return part.replace("%3A", ":").replace("%2F", "/").replace("%25", "%")


def message_key(conversation_id: str, message_id: str, tenant_id: str | None = None) -> str:
    """`_id` of a message in MongoDB: message ids are unique only within a conversation, and for one tenant."""
    key = f"{escape(conversation_id)}:{escape(message_id)}"
    return key if tenant_id is None else f"{key}:{escape(tenant_id)}"


def episode_id(conversation_id: str, ordinal: int, agent_id: str | None = None) -> str:
    """`conversation:ordinal`, or `conversation/agent:ordinal` when episodes are kept for each agent."""
    scope = "" if agent_id is None else f"/{escape(agent_id)}"
    return f"{escape(conversation_id)}{scope}:{ordinal}"


def scope_id(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the id of ordinals, counts and rolling rows: those of a conversation, or of an agent in one.

    `conversation//agent`, each part percent-encoded; a conversation's id with `%` and `/` percent-encoded has no slash.
    """
    if agent_id is None:
        return conversation_id.replace("%", "%25").replace("/", "%2F")
    return f"{escape(conversation_id)}//{escape(agent_id)}"


def conversation_of_scope(scope: str) -> tuple[str, str | None]:
    """Return the conversation and the agent, if it has one, of a `scope_id`."""
    conversation, separator, agent = scope.partition("//")
    return unescape(conversation), unescape(agent) if separator else None


def event_id(episode: str, revision: int) -> str:
    """Id of a `summary.created`: the same event announced twice carries it twice."""
    return f"{episode}:{revision}"


def row_id(conversation_id: str, row: int) -> str:
    """`_id` of a rolling-summary row of a `scope_id`."""
    return f"{escape(conversation_id)}:{row}"


def point_id(episode: str) -> str:
    """Qdrant's id of an episode: UUIDv5 of its `episode_id`."""
    return str(uuid5(POINT_NAMESPACE, episode))
