"""Calls to an LLM, embedding or reranking server over HTTP: their limits, and what failures mean."""

import asyncio
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

import httpx
import orjson
from pydantic import SecretStr

from afterword.schemas import InvalidRecord
from afterword.schemas.records import json_object
from afterword.streams.errors import (
    AnswerInvalid,
    ConfigurationError,
    ContextExceeded,
    ProviderError,
    ProviderMisconfigured,
    ProviderRateLimited,
    ProviderUnavailable,
)
from afterword.streams.settings import EmbedderSettings, Llm, RerankerSettings, is_loopback, variable
from afterword.streams.tls import verifying_context

CALLS_AT_A_TIME = 8
MOST_RESPONSE_BYTES = 4 * 1024 * 1024
"""Maximum number of bytes that are read of a response; a vector of 4,096 numbers takes about 90 kB, a list of
models 1 MB."""
LONGEST_PAUSE_SECONDS = 86_400.0
"""A server that asks for a longer wait is asked again after this time."""
GATEWAYS_PREFIX = "llm_provider-"
RETRIED_4XX = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY}
_TABLES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("http.toml").read_text(encoding="utf-8"))
PAUSES: Mapping[str, float] = _TABLES["pauses"]
STATUSES = {int(status): meaning for status, meaning in _TABLES["statuses"].items()}
NAMES = {name: meaning for meaning, names in _TABLES["names"].items() for name in names.split()}
TEXTS = {meaning: re.compile(text, re.I | re.S) for meaning, text in _TABLES["texts"].items()}
REASONS = {meaning: frozenset(words.split()) for meaning, words in _TABLES["reasons"].items()}
SENTENCES: Mapping[str, str] = _TABLES["sentences"]
FINAL = {"key", "credit", "model", "forbidden", "lost"}
"""Meanings that concern every request, if a status, code or type says so."""
ERRORS = {str(status) for status in range(400, 600)}
MESSAGE_CHARACTERS = 2000
"""Maximum number of characters of a server's error message that are read."""
_CODE = re.compile(r"(?!none$)[a-z][a-z0-9_.]{0,63}", re.I)
_CONTEXT = re.compile(r"context (?:length|limit|size|window)", re.I)
_SIZED, _LIMIT = (f"(?:{'|'.join(_TABLES['too_long'][name])})" for name in ("sized", "limit"))
_TOO_LONG = re.compile(
    rf"(?:request|payload) too large|{_SIZED}.{{0,120}}?{_LIMIT}|{_LIMIT}.{{0,40}}?{_SIZED}", re.I | re.S
)
"""Matches servers' errors for a prompt that does not fit into the model's context, whatever the order of their words.
"""
_QUOTA = re.compile("|".join(_TABLES["too_long"]["quota"]), re.I)
_CONTENTS = {"input", "messages", "model", "prompt"}
_ANSWER_LIMIT = re.compile("max(?:imum)?(?:completion|output)?tokens")
"""Names of the same limit: servers do not always call it as the request does."""
_PARAMETER = re.compile(r"param|support", re.I)
"""What a router says that knows the model, but none that takes such a request."""
_GATEWAYS_NOTE = re.compile(r"\s*LiteLLM: model group .*", re.S)
"""What LiteLLM writes below the error of the server behind it."""


class HttpClient:
    """A client of one server under one base URL. Its errors never repeat the request, the response or the key."""

    def __init__(
        self,
        server: Llm | EmbedderSettings | RerankerSettings,
        section: Literal["llm", "embedder", "reranker"],
        default_url: str,
        calls_at_a_time: int = CALLS_AT_A_TIME,
    ) -> None:
        """Prepare a client, without connecting yet.

        `section` names the settings in errors.
        Raises: ConfigurationError if the address or the key cannot be used.
        """
        url = _checked_url(server.base_url or default_url, variable((section, "base_url")))
        self.address = f"{url.host}:{url.port}" if url.port else url.host
        self._timeout_seconds = server.timeout_seconds
        self._calls = asyncio.Semaphore(calls_at_a_time)
        self._client = httpx.AsyncClient(
            base_url=url,
            headers=_authorization(server.api_key, variable((section, "api_key"))),
            verify=verifying_context(),
            timeout=server.timeout_seconds,
            trust_env=not is_loopback(url.host),  # no proxy for this machine itself
            limits=httpx.Limits(max_keepalive_connections=calls_at_a_time),
        )

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the response's JSON object. Raises: ProviderError, also for an error in a response with status 200."""
        async with self._calls:
            response, content = await self._send(path, orjson.dumps(body))
        if not response.is_success:
            raise failure(response, content, body)
        try:
            answer = json_object(content)
        except InvalidRecord:
            raise no_answer("its response was not a JSON object") from None
        if error := answer.get("error"):
            raise reported(error, body)
        return answer

    async def _send(self, path: str, content: bytes) -> tuple[httpx.Response, bytes]:
        """Return the response and its body. Raises: ProviderUnavailable."""
        given = {"content": content, "headers": {"content-type": "application/json"}}
        try:
            return await bounded(self._client, self._timeout_seconds, "POST", path, **given)
        except (TimeoutError, httpx.TimeoutException):
            raise ProviderUnavailable(problem=f"{self.address} did not answer in time") from None
        except httpx.RequestError as error:
            raise ProviderUnavailable(problem=f"{type(error).__name__} at {self.address}") from None

    async def close(self) -> None:
        await self._client.aclose()


async def bounded(
    client: httpx.AsyncClient, seconds: float, method: str, url: str, **given: Any
) -> tuple[httpx.Response, bytes]:
    """Send a request, and return the response and its body.

    Raises: TimeoutError, httpx.RequestError; ProviderUnavailable if the body is compressed or too long.
    """
    # nothing is decompressed, because a few bytes could become very many
    given["headers"] = {**given.get("headers", {}), "accept-encoding": "identity"}
    async with asyncio.timeout(seconds):  # httpx only limits the pause between two bytes
        async with client.stream(method, url, **given) as response:
            return response, await bounded_body(response)


async def bounded_body(response: httpx.Response) -> bytes:
    """Read a body of at most MOST_RESPONSE_BYTES. If the body of an error response is longer or compressed, it counts
    as empty.

    Raises: ProviderUnavailable.
    """
    body, problem = bytearray(), ""
    if (encoding := response.headers.get("content-encoding", "identity").strip().lower()) not in ("identity", ""):
        problem = f"was compressed ({encoding[:20]}) although the request does not allow it"
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_RESPONSE_BYTES:
            problem = f"was longer than {MOST_RESPONSE_BYTES} bytes"
        if problem:
            break
    if problem and response.is_success:
        raise no_answer(f"its response {problem}")
    return b"" if problem else bytes(body)


def no_answer(problem: str) -> ProviderUnavailable:
    """Make the error for a successful response without an answer; a retry may get one."""
    return ProviderUnavailable(problem=problem, has_response=True)


def reported(error: Any, request: dict[str, Any], problem: str = "its response reports an error") -> ProviderError:
    """Return the error that a successful response reports. Its code is treated like an HTTP status."""
    details = _as_error(error)
    for code in map(details.get, ("code", "status", "status_code")):
        if isinstance(code, int | str) and str(code)[:4] in ERRORS:
            return _meaning(int(code), details, request)
    return ProviderUnavailable(problem=problem, has_response=True, named=_named(details, request))


def failure(response: httpx.Response, content: bytes, request: dict[str, Any]) -> ProviderError:
    """Map an unsuccessful response to its error.

    A refusal becomes ProviderMisconfigured here. The caller may know from other requests that only this one was
    refused.
    """
    retry_after = pause_seconds(response.headers, datetime.now(UTC))
    try:
        said = orjson.loads(content)
    except orjson.JSONDecodeError:
        said = {}
    if isinstance(said, list) and said:
        said = said[0]  # of Google
    error = _as_error(said.get("error", said) if isinstance(said, dict) else said)
    return _meaning(response.status_code, error, request, retry_after)


def _meaning(status: int, error: dict[str, Any], request: dict[str, Any], retry_after: float = 0.0) -> ProviderError:
    named = _named(error, request)
    about = {"retry_after": retry_after, "has_response": True, "named": named}
    known = next(filter(_CODE.fullmatch, _names(error)), "")  # any text but an identifier might quote the prompt
    shown = f"{status} {known}".rstrip()
    kind, is_certain = _kind(status, error, named)
    match kind:
        case "limit":
            return ProviderRateLimited(retry_after=retry_after, reason=f"({shown})")
        case "context":
            return ContextExceeded(status=status)
        case "unparsed":
            return AnswerInvalid(problem="it was not valid JSON")
        case "down":
            return ProviderUnavailable(problem=f"it answers with {shown}", **about)
    if kind in TEXTS and not is_certain:  # the text said more than the type
        shown = str(status)
    return ProviderMisconfigured(
        problem=f"{SENTENCES[kind]} ({shown})",
        is_refusal=HTTPStatus.BAD_REQUEST <= status < HTTPStatus.INTERNAL_SERVER_ERROR,
        stops_asking=kind in FINAL and is_certain,
        **about,
    )


def _kind(status: int, error: dict[str, Any], named: frozenset[str]) -> tuple[str, bool]:
    """Return what an error means, by its code or type, else by its status, else by its text.

    Also returns False if that may be different for another request.
    """
    by_name = next((NAMES[name] for name in map(str.lower, _names(error)) if name in NAMES), "")
    if by_name == "limit" or (status == HTTPStatus.TOO_MANY_REQUESTS and by_name != "credit"):
        return "limit", True
    names_context = by_name == "context" or bool(_CONTEXT.search(_message(error)))
    is_down = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    if status in RETRIED_4XX or (is_down and not (names_context and status == HTTPStatus.INTERNAL_SERVER_ERROR)):
        return "down", True
    if status < HTTPStatus.BAD_REQUEST:
        return "redirect", True
    by_status = STATUSES.get(status, "")
    certain = by_status if by_status in ("key", "credit") else by_name
    if certain not in ("", "context"):
        return certain, True
    return _kind_of_text(by_status, error, named, is_too_long=names_context or by_status == "context")


def _kind_of_text(
    by_status: str, error: dict[str, Any], named: frozenset[str], *, is_too_long: bool
) -> tuple[str, bool]:
    said = _message(error)
    if "failed_generation" in error:  # Groq's form of an answer that does not follow the schema
        return "unparsed", True
    if is_too_long or (named <= _CONTENTS and _TOO_LONG.search(said)):
        return ("limit" if _QUOTA.search(said) else "context"), True
    by_text = next((meaning for meaning, text in TEXTS.items() if text.search(said)), "")
    if _text(error, "param") == "model":
        by_text = "model"
    is_lost = by_status == "lost" and by_text in ("", "model") and not _PARAMETER.search(said)
    return by_text or by_status or "refused", is_lost


def _names(error: dict[str, Any]) -> list[str]:
    return [_text(error, field) for field in ("code", "type", "status", "__type")]


def pause_seconds(headers: Mapping[str, str], now: datetime) -> float:
    """Return how long a server asks to wait: the longest of what its headers say; 0 if none can be read."""
    waits = [
        (retry_after_seconds(headers.get(prefix + name), now) or 0.0) * unit
        for name, unit in PAUSES.items()
        for prefix in ("", GATEWAYS_PREFIX)
    ]
    return min(max(waits), LONGEST_PAUSE_SECONDS)


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Read a Retry-After header, which is in seconds or an HTTP date (RFC 9110, 10.2.3); None if it is unreadable."""
    if value is None:
        return None
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", value.strip()):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError):  # OverflowError means a year that is out of range
        return None
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


def _named(error: dict[str, Any], request: dict[str, Any]) -> frozenset[str]:
    """Return the request's fields that an error mentions, as in `max_tokens`, `maxTokens` or "Max tokens".

    If an error mentions a schema, or a grammar, which servers make from one, it means any field whose value is an
    object.
    """
    said = _letters(_said(error))
    return frozenset(
        name
        for name, value in request.items()
        if _letters(name) in said or (isinstance(value, dict) and ("schema" in said or "grammar" in said))
    )


def _said(error: dict[str, Any]) -> str:
    """Return the text of all fields of an error."""
    try:
        return str(error)[:MESSAGE_CHARACTERS]
    except RecursionError:
        return ""


def _message(error: dict[str, Any]) -> str:
    """Return what an error says in words, or all of it if it has no message."""
    return _GATEWAYS_NOTE.sub("", _text(error, "message")[:MESSAGE_CHARACTERS]) or _said(error)


def _letters(text: str) -> str:
    return _ANSWER_LIMIT.sub("maxtokens", "".join(filter(str.isalpha, text.lower())))


def _as_error(error: Any) -> dict[str, Any]:
    return error if isinstance(error, dict) else {"message": error}


def _text(error: dict[str, Any], field: str) -> str:
    """Return a field if it is a string, else an empty one: `str` of something deeply nested raises RecursionError."""
    value = error.get(field)
    return value if isinstance(value, str) else ""


def _authorization(api_key: SecretStr | None, setting: str) -> dict[str, str]:
    key = api_key.get_secret_value().strip() if api_key else ""
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(setting=setting, problem="it holds characters that no key has")
    return {"authorization": f"Bearer {key}"} if key else {}


def _checked_url(text: str, setting: str) -> httpx.URL:
    try:
        url = httpx.URL(text.rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigurationError(setting=setting, problem="not an http or https address")
    return url
