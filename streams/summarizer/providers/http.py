"""The one place where an LLM is called over HTTP: how many at a time, for how long, and what each failure means."""

import asyncio
import ipaddress
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx
import orjson

from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import Llm, variable
from afterword.streams.summarizer.providers.turns import Turns
from afterword.streams.tls import trusting

RETRIED_4XX = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY}
CONFIGURATION = {
    HTTPStatus.UNAUTHORIZED: "it does not accept the API key",
    HTTPStatus.FORBIDDEN: "the API key may not do this",
    HTTPStatus.NOT_FOUND: "it knows no such model or address",
}
_CODE = re.compile(r"[a-z][a-z0-9_.]{0,63}")
_UNKNOWN_MODEL = re.compile(r"model\b.{0,200}\b(?:not found|not exist|unknown|not supported|invalid)", re.I | re.S)


class Endpoint:
    """An LLM server under one base URL. Errors never repeat what was sent, what came back, or the key."""

    def __init__(self, llm: Llm, default_url: str, took: Callable[[float], None] = lambda _: None) -> None:
        """`took` is told the seconds of each POST, without the wait for a turn.

        Raises: ConfigurationError when the address, the key or the CAs' file cannot be used.
        """
        url = _checked_url(llm.base_url or default_url)
        self.address = f"{url.host}:{url.port}" if url.port else url.host
        self._timeout_seconds = llm.timeout_seconds
        self._took = took
        # one for all clients: reading the CAs takes longer than many a request
        verify = trusting(llm.ca_file, variable(("llm", "ca_file"))) if llm.ca_file else httpx.create_ssl_context()

        def client() -> httpx.AsyncClient:
            return httpx.AsyncClient(
                base_url=url,
                headers=_authorization(llm),
                verify=verify,
                timeout=llm.timeout_seconds,
                trust_env=not _is_loopback(url.host),  # a proxy can never lead to this machine
            )

        self._turns = Turns(llm.max_concurrency, client)

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The JSON object of the response. Raises: ProviderError."""
        return await self._call("POST", path, orjson.dumps(body))

    async def get(self, path: str) -> dict[str, Any]:
        """The JSON object of the response. Raises: ProviderError."""
        return await self._call("GET", path, None)

    async def close(self) -> None:
        await self._turns.close()

    async def _call(self, method: str, path: str, content: bytes | None) -> dict[str, Any]:
        async with self._turns.turn() as client:
            began = time.monotonic()
            try:
                response = await self._send(client, method, path, content)
            finally:
                if content is not None:
                    self._took(time.monotonic() - began)
        if response.is_success:
            return _json_object(response)
        raise failure(response)

    async def _send(self, client: httpx.AsyncClient, method: str, path: str, content: bytes | None) -> httpx.Response:
        try:
            # httpx limits the silence between two bytes; a server that trickles is limited here
            async with asyncio.timeout(self._timeout_seconds):
                return await client.request(method, path, content=content, headers={"content-type": "application/json"})
        except (TimeoutError, httpx.TimeoutException):
            raise ProviderUnavailable(problem=f"{self.address} did not answer in time") from None
        except httpx.RequestError as error:
            raise ProviderUnavailable(problem=f"{type(error).__name__} at {self.address}") from None


def failure(response: httpx.Response) -> ProviderError:
    """What a response that is no success means for us: wait and ask again, change the settings, or give up."""
    status = response.status_code
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return ProviderRateLimited(retry_after=retry_after_seconds(response.headers.get("retry-after"), _now()) or 0)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status in RETRIED_4XX:
        wait = retry_after_seconds(response.headers.get("retry-after"), _now())
        return ProviderUnavailable(problem=f"it answers with {status}", retry_after=wait or 0)
    if status < HTTPStatus.BAD_REQUEST:
        return ProviderMisconfigured(problem=f"it redirects ({status}); check the base URL")
    if status in CONFIGURATION:
        return ProviderMisconfigured(problem=f"{CONFIGURATION[HTTPStatus(status)]} ({status})")
    return _refusal(status, _error_in(response))


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks to wait, given as seconds or as an HTTP date (RFC 9110, 10.2.3)."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", value.strip()):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _refusal(status: int, error: dict[str, Any]) -> ProviderError:
    code, message = str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")
    if code == "model_not_found" or error.get("param") == "model" or _UNKNOWN_MODEL.search(message):
        return ProviderMisconfigured(problem=f"it knows no such model ({status})")
    named = f" {code}" if _CODE.fullmatch(code) else ""  # a code is an identifier; anything else may quote the prompt
    return ProviderError(problem=f"it refused the request ({status}{named})", refused_parameter=_parameter(error))


def _parameter(error: dict[str, Any]) -> str | None:
    """The name of a request's field that this server or model does not take."""
    if str(error.get("code")).startswith("unsupported") and isinstance(error.get("param"), str):
        return str(error["param"]).partition(".")[0]
    return "response_format" if "response_format" in f"{error.get('param')} {error.get('message')}" else None


def _error_in(response: httpx.Response) -> dict[str, Any]:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        return {}
    error = body.get("error", body) if isinstance(body, dict) else {}
    return error if isinstance(error, dict) else {"message": str(error)}


def _json_object(response: httpx.Response) -> dict[str, Any]:
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict):
        raise AnswerInvalid(problem="the response was not a JSON object")
    return body


def _authorization(llm: Llm) -> dict[str, str]:
    key = llm.api_key.get_secret_value().strip() if llm.api_key else ""
    if not (key.isascii() and (key.isprintable())):
        raise ConfigurationError(setting=variable(("llm", "api_key")), problem="it holds characters that no key has")
    return {"authorization": f"Bearer {key}"} if key else {}


def _checked_url(text: str) -> httpx.URL:
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(setting=variable(("llm", "base_url")), problem="not an http or https address")
    return url


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _now() -> datetime:
    return datetime.now(UTC)
