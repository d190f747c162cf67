"""A client of schema registries, using the routes that Confluent's, Karapace, Redpanda's and Apicurio's share."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import httpx
import orjson

from afterword.schemas import InvalidRecord
from afterword.streams.errors import AfterwordError, ConfigurationError
from afterword.streams.ingest.decoding import AvroSchema, SchemaRefused
from afterword.streams.settings import RegistrySettings, variable
from afterword.streams.tls import verifying_context

UNKNOWN_SCHEMA = "unknown_schema"
MOST_KEPT = 1000
TIMEOUT_SECONDS = 10.0
UNKNOWN_SECONDS = 30.0
"""An unknown or refused schema is not requested again for this long."""
MOST_REFERENCES = 100


class RegistryUnavailable(AfterwordError):
    """the schema registry at {address} cannot be reached: {problem}"""

    problem: str


@asynccontextmanager
async def open_registry(settings: RegistrySettings) -> AsyncIterator["SchemaRegistry"]:
    """Open a client, which asks nothing until a schema is needed."""
    auth = None
    if settings.username is not None and settings.password is not None:
        auth = httpx.BasicAuth(settings.username, settings.password.get_secret_value())
    tls = verifying_context()
    async with httpx.AsyncClient(base_url=settings.url or "", auth=auth, verify=tls, timeout=TIMEOUT_SECONDS) as client:
        yield SchemaRegistry(client)


class SchemaRegistry:
    """Schemas by id. An id's schema never changes, so each is requested once."""

    def __init__(self, client: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[int, AvroSchema] = {}
        self._unknown: dict[int, tuple[float, str]] = {}

    async def avro(self, number: int) -> AvroSchema:
        """Return the schema with this id. Raises: InvalidRecord, RegistryUnavailable, ConfigurationError."""
        if number in self._known:
            return self._known[number]
        until, problem = self._unknown.get(number, (0.0, ""))
        if until > self._clock():
            raise InvalidRecord(UNKNOWN_SCHEMA, problem)
        for kept in (self._known, self._unknown):
            if len(kept) >= MOST_KEPT:
                kept.clear()
        try:
            answer = await self._ask(f"/schemas/ids/{number}")
            references: dict[str, Any] = {}
            await self._add_references(answer, references)
            found = self._known[number] = AvroSchema(_schema_in(answer), list(references.values()))
        except SchemaRefused as error:
            problem = f"schema {number} cannot be used: {error}"
            self._unknown[number] = (self._clock() + UNKNOWN_SECONDS, problem)
            raise InvalidRecord(UNKNOWN_SCHEMA, problem) from None
        return found

    async def check(self) -> None:
        """Check that the registry answers. Raises: RegistryUnavailable, ConfigurationError."""
        await self._get("/schemas/types")

    async def _add_references(self, answer: dict[str, Any], found: dict[str, Any]) -> None:
        """Add the schemas that a schema refers to, each after those that it depends on. Raises: SchemaRefused."""
        try:
            paths = [
                f"/subjects/{quote(one['subject'], safe='')}/versions/{int(one['version'])}"
                for one in answer.get("references") or ()
            ]
        except (KeyError, TypeError, ValueError):
            raise SchemaRefused("its references cannot be read") from None
        for path in paths:
            if path in found:
                continue
            if len(found) == MOST_REFERENCES:
                raise SchemaRefused(f"it has more than {MOST_REFERENCES} references")
            found[path] = None  # a schema that refers to itself is not followed again
            referred = await self._ask(path)
            await self._add_references(referred, found)
            del found[path]
            found[path] = _schema_in(referred)

    async def _ask(self, path: str) -> dict[str, Any]:
        """Raises: SchemaRefused, RegistryUnavailable, ConfigurationError."""
        response = await self._get(path)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise SchemaRefused("the registry does not have it")
        try:
            answer = orjson.loads(response.content)
        except orjson.JSONDecodeError:
            answer = None
        if not response.is_success or not isinstance(answer, dict):
            raise self._unavailable(f"it answers with {response.status_code}")
        return answer

    async def _get(self, path: str) -> httpx.Response:
        """Raises: RegistryUnavailable, ConfigurationError."""
        try:
            response = await self._client.get(path)
        except httpx.HTTPError as error:
            raise self._unavailable(type(error).__name__) from None
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            problem = f"the registry answers with {response.status_code}"
            raise ConfigurationError(setting=variable(("registry", "username")), problem=problem)
        if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise self._unavailable(f"it answers with {response.status_code}")
        return response

    def _unavailable(self, problem: str) -> RegistryUnavailable:
        return RegistryUnavailable(address=self._client.base_url.host, problem=problem)


def _schema_in(answer: dict[str, Any]) -> Any:
    """Raises: SchemaRefused."""
    kind = answer.get("schemaType", "AVRO")
    if kind != "AVRO":
        raise SchemaRefused(f"it is of the type {str(kind)[:20]}, not AVRO")
    try:
        return orjson.loads(answer["schema"])
    except (KeyError, TypeError, orjson.JSONDecodeError):
        raise SchemaRefused("it is not an Avro schema") from None
