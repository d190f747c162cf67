"""Messages of Standard Webhooks: body, id and signature of an event. https://www.standardwebhooks.com"""

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import quote

import orjson
from standardwebhooks import Webhook

from afterword.schemas import SummaryCreated, SummaryDeleted
from afterword.schemas.base import rfc3339
from afterword.schemas.summaries import SUMMARY_CREATED, SUMMARY_DELETED

SAFE = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
"""Characters that stay as they are in an id: all that are visible in ASCII. An event id has a `%` only as `%25`."""


def webhook_body(event: SummaryCreated | SummaryDeleted) -> bytes:
    """Encode the event as JSON: `type`, `timestamp`, and `data`, the event as it is on its topic."""
    if isinstance(event, SummaryCreated):
        return _enveloped(SUMMARY_CREATED, event.created_at, event.to_json())
    return _enveloped(SUMMARY_DELETED, event.deleted_at, event.to_json())


def _enveloped(kind: str, moment: datetime, data: bytes) -> bytes:
    return orjson.dumps({"type": kind, "timestamp": rfc3339(moment), "data": orjson.Fragment(data)})


def webhook_id(event_id: str) -> str:
    """Return the event id as a header can have it: what is not visible in ASCII is percent-encoded."""
    return quote(event_id, safe=SAFE)


def signed_headers(identity: str, body: bytes, secrets: Sequence[str], now: datetime) -> dict[str, str]:
    """Sign with each secret. `identity`: the `webhook-id`; `now`: in UTC, with its time zone."""
    text = body.decode()
    signatures = [Webhook(secret).sign(identity, now, text) for secret in secrets]
    return {
        "content-type": "application/json",
        "webhook-id": identity,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
