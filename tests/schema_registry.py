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
    `is_plain` gives descriptors without that format, `damages` puts their bytes into the text, as Apicurio does;
    `fails` are the ids that are answered with 500, and `global_ids` has ids of its own API below `/apis/registry/v3`.
    """

    def __init__(self, user: str | None = None) -> None:
        self.user = user
        self.is_away = False
        self.serializes = True
        self.refuses = 0
        self.is_plain = False
        self.damages = False
        self.fails: set[int] = set()
        self.global_ids: dict[int, int] = {}
        self.asked: list[str] = []
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, int] = {}
        self._guids: dict[str, int] = {}
        self._closing = AsyncExitStack()
        self.url = ""

    def add(self, schema: Any, kind: str = "AVRO", subject: str = "", references: Any = (), guid: str = "") -> int:
        number = len(self._schemas) + 1
        answer: dict[str, Any] = {"schema": serialized(schema) if kind == "PROTOBUF" else json.dumps(schema)}
        if kind != "AVRO":  # as documented, it is left out for Avro
            answer["schemaType"] = kind
        if references:
            answer["references"] = [{"name": one, "subject": one, "version": 1} for one in references]
        self._schemas[number] = answer
        self._subjects[subject] = number
        self._guids[guid] = number
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
        if request.path.endswith("/search/versions"):
            found = self.global_ids.get(int(request.query["globalId"]))
            return web.json_response({"count": 1, "versions": [{"contentId": found}]} if found else {"versions": []})
        parts = [unquote(part) for part in request.raw_path.partition("?")[0].strip("/").split("/")]
        parts = parts[3:] if parts[0] == "apis" else parts
        if parts == ["schemas", "types"]:
            return web.json_response(["JSON", "PROTOBUF", "AVRO"])
        return self._schema(*parts[:3], is_serialized=request.query.get("format") == "serialized")

    def _schema(self, root: str, kind: str, name: str, *, is_serialized: bool) -> web.Response:
        by_name = self._guids.get(name, 0) if kind == "guids" else self._subjects.get(kind, 0)
        number = int(name) if (root, kind) == ("schemas", "ids") else by_name
        if number in self.fails:
            return web.json_response({"message": "java.lang.IllegalStateException", "error_code": 0}, status=500)
        if number not in self._schemas:
            return web.json_response(UNKNOWN_SCHEMA, status=404)
        answer = dict(self._schemas[number])
        if answer.get("schemaType") == "PROTOBUF" and not self.is_plain:
            if not self.serializes or not is_serialized:
                answer["schema"] = 'syntax = "proto3"; message Text { string text = 1; }'
            elif self.damages:
                answer["schema"] = base64.b64decode(answer["schema"]).decode(errors="replace")
        return web.json_response(answer, content_type="application/vnd.schemaregistry.v1+json")


def serialized(file: FileDescriptorProto) -> str:
    return base64.b64encode(file.SerializeToString()).decode()


def framed(number: int, schema: Any, value: Any) -> bytes:
    """Return a value in the wire format."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return b"\0" + number.to_bytes(4) + stream.getvalue()
