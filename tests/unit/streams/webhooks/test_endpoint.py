"""One endpoint over real connections: what each answer means, and what is never done."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from afterword.streams.settings import WebhookEndpoint, Webhooks
from afterword.streams.webhooks.endpoint import (
    MOST_REQUESTS,
    DeliveryFailed,
    Endpoint,
    EndpointGone,
    failure_of,
    signed_headers,
    webhook_body,
    webhook_id,
)
from tests.doubles.receiver import SECRET, receiving
from tests.samples import NOON, a_summary, a_tombstone

BODY = webhook_body(a_summary(1))


@asynccontextmanager
async def opened(
    url: str, hosts: str = "127.0.0.1", resolver: AbstractResolver | None = None, answer_seconds: float = 20
) -> AsyncIterator[Endpoint]:
    endpoints = {"one": WebhookEndpoint(url=url, secret=SECRET)}
    webhooks = Webhooks(endpoints=endpoints, private_hosts=hosts)
    async with Endpoint(
        "one", endpoints["one"], webhooks, resolver=resolver, answer_seconds=answer_seconds
    ) as endpoint:
        yield endpoint


async def failure(endpoint: Endpoint) -> DeliveryFailed:
    with pytest.raises(DeliveryFailed) as found:
        async with endpoint.turn():
            await endpoint.post("id", BODY)
    return found.value


def answering(status: int, **headers: str) -> Any:
    async def respond(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, headers=headers)

    return respond


async def test_2xx_means_delivered_and_requests_are_signed() -> None:
    for status in (200, 202, 204):
        async with receiving(answering(status)) as receiver, opened(receiver.url) as endpoint:
            async with endpoint.turn():
                await endpoint.post("id", BODY)
            assert receiver.ids() == ["id"]


@pytest.mark.parametrize(
    ("status", "kind"), [(400, "http_4xx"), (404, "http_4xx"), (429, "http_429"), (500, "http_5xx"), (304, "http_3xx")]
)
async def test_other_status_is_a_failure_that_quotes_nothing(status: int, kind: str) -> None:
    says = answering(status, **{"x-secret": "hunter2"})
    async with receiving(says) as receiver, opened(f"{receiver.url}?token=hunter2") as endpoint:
        found = await failure(endpoint)
        assert (found.kind, str(found)) == (kind, f"it answers {status}")
        assert "hunter2" not in repr(found)


async def test_redirect_is_not_followed() -> None:
    async with receiving() as other, receiving(answering(307, location=other.url)) as receiver:
        async with opened(receiver.url) as endpoint:
            assert (await failure(endpoint)).kind == "http_3xx"
        assert other.received == []


async def sleep(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(300)
    return web.Response()


async def reset(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


@pytest.mark.parametrize(
    ("respond", "url", "kind"),
    [
        (sleep, "{url}", "timeout"),
        (reset, "{url}", "connection"),
        (None, "http://127.0.0.1:9/", "connection"),
        (None, "https://name.invalid/", "name_not_resolved"),
        (None, "https://{address}", "tls"),
    ],
)
async def test_failed_connection_has_its_kind(respond: Any, url: str, kind: str) -> None:
    async with receiving(respond) as receiver:
        there = url.format(url=receiver.url, address=receiver.url.removeprefix("http://"))
        async with opened(there, answer_seconds=0.2 if respond is sleep else 20) as endpoint:
            assert (await failure(endpoint)).kind == kind


async def test_retry_after_delays_every_request() -> None:
    async with receiving(answering(429, **{"retry-after": "1"})) as receiver, opened(receiver.url) as endpoint:
        began = time.monotonic()
        assert (await failure(endpoint)).retry_after == 1
        await failure(endpoint)
        assert time.monotonic() - began >= 0.95


@pytest.mark.parametrize(("said", "seconds"), [("120", 120), ("999999", 3600), ("-1", 0), ("soon", 0), ("", 0)])
def test_retry_after_is_bounded_and_nonsense_ignored(said: str, seconds: float) -> None:
    found = failure_of(503, said, NOON)
    assert found is not None
    assert found.retry_after == seconds


async def test_nothing_is_sent_after_410() -> None:
    async with receiving(answering(410)) as receiver, opened(receiver.url) as endpoint:
        assert isinstance(await failure(endpoint), EndpointGone)
        receiver.respond = answering(200)
        assert isinstance(await failure(endpoint), EndpointGone)
        assert len(receiver.received) == 1


async def test_endless_body_is_not_read() -> None:
    sent = 0

    async def flood(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b"x" * 65536)
                sent += 65536
        except ConnectionError:
            return response

    async with receiving(flood) as receiver, opened(receiver.url) as endpoint:
        began = time.monotonic()
        async with endpoint.turn():
            await endpoint.post("id", BODY)
        assert time.monotonic() - began < 15
        await asyncio.sleep(0.2)
        assert sent < 20_000_000


class Rebinding(AbstractResolver):
    """A resolver that maps every name to this machine, as an attacker's name server might."""

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=socket.AF_INET, proto=6, flags=0)]

    async def close(self) -> None:
        pass


async def test_name_with_a_private_address_is_not_connected() -> None:
    async with receiving() as receiver:
        url = receiver.url.replace("http://127.0.0.1", "https://public.example")
        async with opened(url, hosts="", resolver=Rebinding()) as endpoint:
            assert (await failure(endpoint)).kind == "address_refused"
        async with opened(receiver.url.replace("http:", "https:"), hosts="other") as endpoint:
            assert (await failure(endpoint)).kind == "address_refused"
        allowed = receiver.url.replace("127.0.0.1", "public.example")
        async with opened(allowed, hosts="public.example", resolver=Rebinding()) as endpoint, endpoint.turn():
            await endpoint.post("id", BODY)
        assert receiver.ids() == ["id"]


async def test_concurrent_requests_are_limited() -> None:
    full = asyncio.Event()

    async def wait(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
        if receiver.at_once >= MOST_REQUESTS:
            full.set()
        await full.wait()
        return web.Response()

    async def one(endpoint: Endpoint, number: int) -> None:
        async with endpoint.turn():
            await endpoint.post(f"{number}", BODY)

    async with receiving(wait) as receiver, opened(receiver.url) as endpoint:
        await asyncio.gather(*[one(endpoint, number) for number in range(50)])
        assert receiver.most_at_once == MOST_REQUESTS
        assert len(receiver.taken) == 50


OTHER = "whsec_" + "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90"


def test_webhook_body_has_type_time_and_event() -> None:
    made = a_summary(1)
    body = orjson.loads(webhook_body(made))
    assert body["type"] == "summary.created"
    assert body["timestamp"] == "2026-01-05T12:01:00.123Z"
    assert body["data"] == orjson.loads(made.to_json())


def test_webhook_of_a_deletion_has_its_own_type() -> None:
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
