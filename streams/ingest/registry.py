"""A client of schema registries, using the routes that Confluent's, Karapace, Redpanda's and Apicurio's share."""

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import orjson

from afterword.schemas import InvalidRecord
from afterword.schemas.records import KafkaRecord, RecordHeaders
from afterword.streams.errors import AfterwordError, ConfigurationError, ProviderError
from afterword.streams.http import bounded
from afterword.streams.ingest.formats import (
    MAGIC,
    AvroSchema,
    Part,
    ProtobufSchema,
    Read,
    SchemaRefused,
    descriptor_file,
    read_json,
    read_json_of,
    unframed,
)
from afterword.streams.ingest.sources import KEYS, Format, Source
from afterword.streams.settings import RegistrySettings, variable
from afterword.streams.tasks import apart
from afterword.streams.tls import verifying_context

UNKNOWN_SCHEMA = "unknown_schema"
MOST_KEPT = 1000
TIMEOUT_SECONDS = 10.0
SHORTEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 32.0
"""A registry, or a schema, that fails is asked for again after a pause, which doubles each time."""
UNKNOWN_SECONDS = 30.0
"""An unknown or refused schema is not requested again for this long."""
MOST_REFERENCES = 100
REFUSALS = (httpx.codes.BAD_REQUEST, httpx.codes.UNPROCESSABLE_ENTITY, httpx.codes.NOT_IMPLEMENTED)
"""Statuses that mean that the schema is not of the requested type."""
TYPES: Mapping[Format, str] = {"avro": "AVRO", "json-schema": "JSON", "protobuf": "PROTOBUF"}
SCHEMAS: Mapping[Format, type[AvroSchema | ProtobufSchema]] = {"avro": AvroSchema, "protobuf": ProtobufSchema}


class RegistryUnavailable(AfterwordError):
    """the schema registry at {address} cannot be reached: {problem}"""

    problem: str


class SchemaUnavailable(RegistryUnavailable):
    """the schema registry at {address} does not give schema {number}: {problem}"""


@asynccontextmanager
async def open_registry(settings: RegistrySettings) -> AsyncIterator["SchemaRegistry"]:
    """Open a client, which sends no request until a schema is needed."""
    auth = None
    if settings.username is not None and settings.password is not None:
        auth = httpx.BasicAuth(settings.username, settings.password.get_secret_value())
    tls = verifying_context()
    async with httpx.AsyncClient(base_url=settings.url or "", auth=auth, verify=tls, timeout=TIMEOUT_SECONDS) as client:
        yield SchemaRegistry(client)


Key = tuple[Format, int | str, str]
"""A schema: its format, and its id with the kind of the id."""


class Failure(NamedTuple):
    """Why a schema is not asked for again until then, after a pause of so many seconds."""

    error: RegistryUnavailable | InvalidRecord
    until: float
    seconds: float = 0.0


class SchemaRegistry:
    """Schemas by id. An id's schema never changes, so each is requested once."""

    def __init__(self, client: httpx.AsyncClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[Key, Read] = {}
        self._failed: dict[Key | None, Failure] = {}
        """Schemas that are not asked for again yet; None is the whole registry."""

    async def read(self, source: Source, record: KafkaRecord) -> tuple[Any, Any]:
        """Return a record's value, and its key if that needs a registry.

        Raises: InvalidRecord, RegistryUnavailable, ConfigurationError.
        """
        key_format = source.key_format
        key = None
        if key_format not in KEYS:
            key = await self.decode(key_format, record.key, record.headers, "key")  # type: ignore[arg-type]
        return await self.decode(source.format, record.value, record.headers), key

    async def decode(self, form: Format, data: bytes | None, headers: RecordHeaders = (), part: Part = "value") -> Any:
        """Decode a record's value or key, or return None if it has none. JSON does not need its schema.

        Raises: InvalidRecord, RegistryUnavailable, ConfigurationError.
        """
        if data is None:
            return None
        if form == "json":
            return await apart(len(data), read_json_of, data, headers)
        schema, rest = unframed(data, headers, part)
        read = read_json if form == "json-schema" else await self.reader(form, *schema)
        return await apart(len(rest), read, rest)

    async def reader(self, form: Format, number: int | str, kind: str = "ids") -> Read:
        """Return the reader of records with this schema.

        Raises: InvalidRecord, RegistryUnavailable, ConfigurationError.
        """
        key = form, number, kind
        if key in self._known:
            return self._known[key]
        failure = self._failed.get(key) or self._failed.get(None)
        if failure and failure.until > self._clock():
            raise failure.error
        for kept in (self._known, self._failed):
            if len(kept) >= MOST_KEPT:
                kept.clear()
        try:
            answer = await self._ask(await self._path_of(number, kind), form)
            references: dict[str, str] = {}
            await self._add_references(answer, form, references)
            self._known[key] = SCHEMAS[form](_schema_in(answer, form), references).read
        except SchemaRefused as error:
            raise self._refused(key, str(error)) from None
        except RegistryUnavailable as error:
            raise await self._paused(key, error) from None
        self._failed.pop(None, None)
        self._failed.pop(key, None)
        return self._known[key]

    def _refused(self, key: Key, problem: str, seconds: float = 0.0) -> InvalidRecord:
        error = InvalidRecord(UNKNOWN_SCHEMA, f"schema {key[1]} cannot be used: {problem}")
        self._failed[key] = Failure(error, self._clock() + UNKNOWN_SECONDS, seconds)
        return error

    async def _paused(self, key: Key, error: RegistryUnavailable) -> RegistryUnavailable | InvalidRecord:
        """Return the error after setting when to ask again: for a schema that alone fails for a minute, a refusal."""
        fails: Key | None = None
        with suppress(RegistryUnavailable):
            await self.check()
            fails = key
            error = SchemaUnavailable(address=self._client.base_url.host, number=key[1], problem=error.problem)
        last = self._failed[fails].seconds if fails in self._failed else 0.0
        if fails and last == LONGEST_PAUSE_SECONDS:
            return self._refused(key, f"the registry has not given it for a minute: {error.problem}", last)
        seconds = min(LONGEST_PAUSE_SECONDS, max(SHORTEST_PAUSE_SECONDS, 2 * last))
        self._failed[fails] = Failure(error, self._clock() + seconds, seconds)
        return error

    async def _path_of(self, number: int | str, kind: str) -> str:
        """Return the route of a schema. Raises: SchemaRefused, RegistryUnavailable, ConfigurationError."""
        if kind != "globalIds":
            return f"/schemas/{kind}/{number}"
        base = self._client.base_url
        start, compatible, _ = base.path.partition("/apis/")
        if not compatible:
            raise SchemaRefused("it is a global id, which only Apicurio has, at …/apis/ccompat/v7")
        url = base.copy_with(path=f"{start}/apis/registry/v3/search/versions", query=f"globalId={number}".encode())
        answer = await self._ask(str(url))
        try:
            return f"/schemas/ids/{int(answer['versions'][0]['contentId'])}"
        except (KeyError, IndexError, TypeError, ValueError):
            raise SchemaRefused("the registry does not have it") from None

    async def format_of(self, values: Sequence[tuple[bytes, RecordHeaders]]) -> Format:
        """Guess how values are encoded: if all have a schema's id, by the last schema that the registry has, or Avro.

        Raises: RegistryUnavailable, ConfigurationError.
        """
        try:
            framed = [unframed(value, headers) for value, headers in values]
        except InvalidRecord:
            return "json"
        if all(data[:1] in (b"{", b"[") for _, data in framed):
            return "json-schema" if framed and values[0][0][0] == MAGIC else "json"
        schemas = dict.fromkeys(schema for schema, _ in reversed(framed))
        for number, kind in schemas if self._client.base_url.host else ():
            try:
                name = _type_in(await self._ask(await self._path_of(number, kind)))
                return next((form for form, known in TYPES.items() if known == name), "avro")
            except SchemaRefused:
                continue
            except RegistryUnavailable:
                await self.check()  # perhaps this schema alone fails
        return "avro"

    async def check(self) -> None:
        """Check that the registry answers. Raises: RegistryUnavailable, ConfigurationError."""
        await self._get("/schemas/types")

    async def _add_references(self, answer: dict[str, Any], form: Format, schemas: dict[str, str]) -> None:
        """Add the schemas that a schema refers to, each after those that it depends on. Raises: SchemaRefused."""
        try:
            references = [
                (str(one["name"]), quote(str(one["subject"]), safe=""), int(one["version"]))
                for one in answer.get("references") or ()
            ]
        except (KeyError, TypeError, ValueError):
            raise SchemaRefused("its references cannot be read") from None
        for name, subject, version in references:
            if name in schemas:
                continue
            if len(schemas) == MOST_REFERENCES:
                raise SchemaRefused(f"it has more than {MOST_REFERENCES} references")
            schemas[name] = ""  # a schema that refers to itself is not followed again
            referred = await self._ask(f"/subjects/{subject}/versions/{version}", form)
            await self._add_references(referred, form, schemas)
            del schemas[name]
            schemas[name] = _schema_in(referred, form)

    async def _ask(self, path: str, form: Format | None = None) -> dict[str, Any]:
        """Raises: SchemaRefused, RegistryUnavailable, ConfigurationError."""
        if form == "protobuf":
            # Apicurio refuses the format, or destroys the descriptor in it; its plain answer may be a whole one
            with suppress(SchemaRefused, RegistryUnavailable):
                answer = await self._answer(path, {"format": "serialized"})
                if _type_in(answer) == TYPES["protobuf"]:
                    descriptor_file("", str(answer.get("schema")))
                return answer
        return await self._answer(path)

    async def _answer(self, path: str, params: dict[str, str] | None = None) -> dict[str, Any]:
        """Raises: SchemaRefused, RegistryUnavailable, ConfigurationError."""
        response, content = await self._get(path, params)
        if response.status_code == httpx.codes.NOT_FOUND:
            raise SchemaRefused("the registry does not have it")
        if response.status_code in REFUSALS:
            raise SchemaRefused(f"the registry answers with {response.status_code}")
        with suppress(orjson.JSONDecodeError):
            answer = orjson.loads(content)
            if response.is_success and isinstance(answer, dict):
                return answer
        raise self._unavailable(f"it answers with {response.status_code}")

    async def _get(self, path: str, params: dict[str, str] | None = None) -> tuple[httpx.Response, bytes]:
        """Raises: RegistryUnavailable, ConfigurationError."""
        try:
            response, content = await bounded(self._client, TIMEOUT_SECONDS, "GET", path, params=params)
        except (httpx.HTTPError, TimeoutError, ProviderError) as error:
            raise self._unavailable(type(error).__name__) from None
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            problem = f"the registry answers with {response.status_code}"
            raise ConfigurationError(setting=variable(("registry", "username")), problem=problem)
        is_failing = response.is_server_error and response.status_code not in REFUSALS
        if is_failing or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise self._unavailable(f"it answers with {response.status_code}")
        return response, content

    def _unavailable(self, problem: str) -> RegistryUnavailable:
        return RegistryUnavailable(address=self._client.base_url.host, problem=problem)


def _type_in(answer: dict[str, Any]) -> str:
    return str(answer.get("schemaType", "AVRO"))[:20]


def _schema_in(answer: dict[str, Any], form: Format) -> str:
    """Raises: SchemaRefused."""
    if (kind := _type_in(answer)) != TYPES[form]:
        raise SchemaRefused(f"it is of the type {kind}, not {TYPES[form]}")
    return str(answer.get("schema"))
