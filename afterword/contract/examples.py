"""One event of each type, as it looks on its topic. The tests decode and validate them."""

from typing import Any

import orjson

from afterword.contract.json_schemas import Event

METRICS = {
    "flows_activated": ["returns"],
    "tools_invoked": ["order_lookup"],
    "average_sentiment": -0.4,
    "sentiment_variance": 0.0,
}
COMMON: dict[str, Any] = {
    "episode_id": "c-42:1",
    "revision": 1,
    "conversation_id": "c-42",
    "user_id": "u-7",
    "agent_id": None,
    "tenant_id": "acme",
    "ordinal": 1,
    "message_count": 2,
    "metrics": METRICS,
    "started_at": "2026-03-01T09:30:00.000Z",
    "ended_at": "2026-03-01T09:30:04.000Z",
    "closed_at": "2026-03-01T09:35:05.000Z",
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "message.created": {
        "id": "m-1",
        "conversation_id": "c-42",
        "user_id": "u-7",
        "tenant_id": "acme",
        "role": "user",
        "content": "Order 1187 arrived broken. What now?",
        "sent_at": "2026-03-01T09:30:00Z",
        "sentiment": -0.4,
    },
    "conversation.flush": {"type": "conversation.flush", "conversation_id": "c-42", "reason": "the chat was closed"},
    "episode.closed": {
        **COMMON,
        "close_reason": "idle",
        "fingerprint": "05434687ffe35f8aaf2f611bef3301c638e6da41412d81cb0a487842c01ef833",
        "messages": [
            {
                "id": "m-1",
                "role": "user",
                "content": "Order 1187 arrived broken. What now?",
                "sent_at": "2026-03-01T09:30:00.000Z",
                "user_id": "u-7",
                "agent_id": None,
                "sentiment": -0.4,
                "flows": [],
                "tools": [],
            },
            {
                "id": "m-2",
                "role": "assistant",
                "content": "I am sorry. A label for order 1187 is on its way to you.",
                "sent_at": "2026-03-01T09:30:04.000Z",
                "user_id": "u-7",
                "agent_id": None,
                "sentiment": None,
                "flows": ["returns"],
                "tools": ["order_lookup"],
            },
        ],
        "overlap": [],
        "turn_count": 1,
        "token_count": 28,
        "source": {"topic": "messages", "partition": 3, "first_offset": 118, "last_offset": 121},
    },
    "summary.created": {
        **COMMON,
        "event_id": "c-42:1:1",
        "title": "Return of order 1187",
        "short_summary": "The user's order 1187 arrived broken; the assistant sends a return label.",
        "long_summary": "The user reports that order 1187 arrived broken and asks what to do. "
        "The assistant apologises. A return label is on its way.",
        "rolling_summary": "The user returns order 1187, which arrived broken; a label is on its way.",
        "message_ids": ["m-1", "m-2"],
        "quality": {"source": "llm", "reason": None, "grounding": 1.0, "unsupported": []},
        "model": "gpt-4o-mini",
        "usage": {"prompt_tokens": 612, "completion_tokens": 148},
        "compression": {"tokens_before": 28, "tokens_after": 29, "ratio": -0.036},
        "created_at": "2026-03-01T09:35:07.000Z",
    },
}


def example(event: Event) -> dict[str, Any]:
    """As it is on its topic: what we write has every field."""
    given = EXAMPLES[event.name]
    if event.direction == "input":
        return given
    written: dict[str, Any] = orjson.loads(event.model.model_validate_json(orjson.dumps(given)).to_json())
    return written
