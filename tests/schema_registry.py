"""A stand-in for a schema registry: the routes in use, with the bodies that Confluent documents for them."""

import base64
import io
import json
from contextlib import AsyncExitStack
from typing import Any, Self
from urllib.parse import unquote

import fastavro
from aiohttp import web
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from tests.endpoints import serving

UNKNOWN_SCHEMA = {"error_code": 40403, "message": "Schema not found"}
UNAUTHORIZED = {"error_code": 401, "message": "User cannot access the resource."}


class Registry:
    """Schemas by id. `user` is `name:password` for basic authentication; with `is_away`, every answer is a 503.

    With `serializes`, it knows `?format=serialized`. `refuses` is the status of its answers for that format, unless 0.
    """

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.is_away = False
        self.serializes = True
        self.refuses = 0
        self.asked: list[str] = []
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, int] = {}
        self._closing = AsyncExitStack()
        self.url = ""

    def add(self, schema: Any, kind: str = "AVRO", subject: str = "", references: Any = ()) -> int:
        number = len(self._schemas) + 1
        answer: dict[str, Any] = {"schema": serialized(schema) if kind == "PROTOBUF" else json.dumps(schema)}
        if kind != "AVRO":  # as documented, it is left out for Avro
            answer["schemaType"] = kind
        if references:
            answer["references"] = [{"name": one, "subject": one, "version": 1} for one in references]
        self._schemas[number] = answer
        self._subjects[subject] = number
        return number

    async def __aenter__(self) -> Self:
        self.url = await self._closing.enter_async_context(serving(self._answer, "GET", "/{path:.*}"))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._closing.aclose()

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked.append(request.path)
        if self.is_away:
            return web.Response(status=503)
        if self.refuses and "format" in request.query:
            return web.json_response({"error_code": self.refuses, "message": "Invalid format"}, status=self.refuses)
        given = request.headers.get("authorization", "")
        if self.user is not None and given != f"Basic {base64.b64encode(self.user.encode()).decode()}":
            return web.json_response(UNAUTHORIZED, status=401)
        parts = [unquote(part) for part in request.raw_path.partition("?")[0].strip("/").split("/")]
        if parts == ["schemas", "types"]:
            return web.json_response(["JSON", "PROTOBUF", "AVRO"])
        number = int(parts[2]) if parts[0] == "schemas" else self._subjects.get(parts[1], 0)
        if number not in self._schemas:
            return web.json_response(UNKNOWN_SCHEMA, status=404)
        answer = dict(self._schemas[number])
        if answer.get("schemaType") == "PROTOBUF" and not (
            self.serializes and request.query.get("format") == "serialized"
        ):
            answer["schema"] = 'syntax = "proto3"; message Text { string text = 1; }'
        return web.json_response(answer, content_type="application/vnd.schemaregistry.v1+json")


def serialized(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Return a value in the wire format."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4) + stream.getvalue()
