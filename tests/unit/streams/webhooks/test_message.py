"""Messages as they are posted: body, id, and signatures that the library of Standard Webhooks verifies."""

from datetime import UTC, datetime, timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from afterword.streams.webhooks.endpoint import signed_headers, webhook_body, webhook_id
from tests.doubles.receiver import SECRET
from tests.samples import a_summary, a_tombstone

OTHER = "whsec_" + "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90"


def test_body_has_type_time_and_event() -> None:
    made = a_summary(1)
    body = orjson.loads(webhook_body(made))
    assert body["type"] == "summary.created"
    assert body["timestamp"] == "2026-01-05T12:01:00.123Z"
    assert body["data"] == orjson.loads(made.to_json())


def test_deletion_has_its_own_type() -> None:
    deleted = a_tombstone(1, 2).event
    assert orjson.loads(webhook_body(deleted))["type"] == "summary.deleted"


def test_each_secret_signs_and_no_other() -> None:
    body = webhook_body(a_summary(1))
    headers = signed_headers("id", body, [SECRET, OTHER], datetime.now(UTC))
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook("whsec_" + "bm9uZW5vbmVub25lbm9uZW5vbmVub25l").verify(body, headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body + b" ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers | {"webhook-id": "another"})


def test_old_signature_is_not_accepted() -> None:
    body = webhook_body(a_summary(1))
    headers = signed_headers("id", body, [SECRET], datetime.now(UTC) - timedelta(minutes=6))
    with pytest.raises(WebhookVerificationError, match="too old"):
        Webhook(SECRET).verify(body, headers)


@given(st.text(max_size=40), st.text(max_size=40))
def test_webhook_ids_are_ascii_and_unique_per_event(one: str, other: str) -> None:
    ids = [f"{text.replace('%', '%25').encode(errors='replace').decode()}:1" for text in (one, other)]
    made = [webhook_id(text) for text in ids]
    assert all("!" <= character <= "~" for text in made for character in text)
    assert (made[0] == made[1]) == (ids[0] == ids[1])
