"""Answers of a Qdrant server over HTTP, by the client's own local mode: real searches and filters, but no Qdrant
server. It needs only Afterword's dependencies, so it runs in the image too."""

import re
from collections.abc import Callable
from typing import Any

from aiohttp import web
from pydantic import TypeAdapter
from qdrant_client import QdrantClient
from qdrant_client.http import models

LARGEST_REQUEST_BYTES = 64 << 20

Answer = Callable[[QdrantClient, str, bytes], Any]
"""Answers a request, given the client, the collection's name and the body."""

_ANY = TypeAdapter(Any)
SELECTOR: TypeAdapter[models.PointIdsList | models.FilterSelector] = TypeAdapter(
    models.PointIdsList | models.FilterSelector
)
KEY = re.compile(r'"key":"([^"]+)"')


def response(content: Any, status: int = 200) -> web.Response:
    return web.Response(body=_ANY.dump_json(content), content_type="application/json", status=status)


def answered(answer: Answer, client: QdrantClient, name: str, body: bytes) -> web.Response:
    """Return the answer in the server's form, or its refusal."""
    try:
        result = answer(client, name, body)
    except ValueError as error:  # the local mode's error for a collection that does not exist or exists already
        status = 409 if "already exists" in str(error) else 404
        return response({"status": {"error": str(error)}}, status)
    except Unindexed as error:
        return response({"status": {"error": error.__doc__}}, 400)
    return response({"result": result, "status": "ok", "time": 0.0})


def _collections(client: QdrantClient, name: str, body: bytes) -> Any:
    return client.get_collections()


def _exists(client: QdrantClient, name: str, body: bytes) -> Any:
    return {"exists": client.collection_exists(name)}


def _collection(client: QdrantClient, name: str, body: bytes) -> Any:
    """Return the collection with its payload indexes and the size of its log, which the local mode does not keep."""
    info = client.get_collection(name)
    schema = {
        field: models.PayloadIndexInfo(
            data_type=kind if isinstance(kind, models.PayloadSchemaType) else kind.type.value, params=None, points=0
        )
        for field, kind in _indexes(client, name).items()
    }
    if info.config.wal_config:
        info.config.wal_config.wal_capacity_mb = vars(client).get("log_segment_mb", {}).get(name) or 32
    return info.model_copy(update={"payload_schema": schema})


def create(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.CreateCollection.model_validate_json(body)
    log = wanted.wal_config
    vars(client).setdefault("log_segment_mb", {})[name] = log and log.wal_capacity_mb
    return client.create_collection(
        name,
        vectors_config=wanted.vectors or {},  # type: ignore[arg-type]  # the request's type is wider than the method's
        sparse_vectors_config=wanted.sparse_vectors,
        metadata=wanted.metadata,
    )


def _delete(client: QdrantClient, name: str, body: bytes) -> Any:
    _indexes(client, name).clear()
    return client.delete_collection(name)


def _indexes(client: QdrantClient, name: str) -> dict[str, Any]:
    """Return the collection's payload indexes by field."""
    indexes: dict[str, dict[str, Any]] = vars(client).setdefault("payload_indexes", {})
    return indexes.setdefault(name, {})


def create_index(client: QdrantClient, name: str, body: bytes) -> Any:
    """Note the index: the local mode has none and finds everything anyway."""
    wanted = models.CreateFieldIndex.model_validate_json(body)
    client.get_collection(name)  # which may not exist
    _indexes(client, name)[wanted.field_name] = wanted.field_schema
    return {"operation_id": 0, "status": "completed"}


class Unindexed(Exception):
    """Index required but not found"""


def require_indexes(client: QdrantClient, name: str, *asked: Any) -> None:
    """Refuse what a server in strict mode refuses: to filter, update or sort by a field without an index."""
    fields = {key for one in asked if one is not None for key in KEY.findall(one.model_dump_json())}
    if fields - _indexes(client, name).keys():
        raise Unindexed


def asked_of(wanted: models.QueryRequest) -> list[Any]:
    """Return the filters and the order of a query."""
    order = wanted.query if isinstance(wanted.query, models.OrderByQuery) else None
    return [wanted.filter, order, *(one.filter for one in wanted.prefetch or ())]


def upsert(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.PointsList.model_validate_json(body)
    client.get_collection(name)  # which may not exist
    require_indexes(client, name, wanted.update_filter)
    return client.upsert(name, points=wanted.points, update_filter=wanted.update_filter)


def _delete_points(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = SELECTOR.validate_json(body)
    require_indexes(client, name, wanted if isinstance(wanted, models.FilterSelector) else None)
    return client.delete(name, wanted)


def _set_payload(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.SetPayload.model_validate_json(body)
    assert wanted.filter
    require_indexes(client, name, wanted.filter)
    return client.set_payload(name, wanted.payload, wanted.filter)


def _points(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.PointRequest.model_validate_json(body)
    return client.retrieve(
        name, ids=wanted.ids, with_payload=wanted.with_payload or False, with_vectors=wanted.with_vector or False
    )


def _scroll(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.ScrollRequest.model_validate_json(body)
    points, following = client.scroll(
        name,
        scroll_filter=wanted.filter,
        limit=wanted.limit or 10,
        offset=wanted.offset,
        with_payload=wanted.with_payload or False,
    )
    return {"points": points, "next_page_offset": following}


def _query(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.QueryRequest.model_validate_json(body)
    client.get_collection(name)  # which may not exist
    require_indexes(client, name, *asked_of(wanted))
    return client.query_points(
        name,
        query=wanted.query,
        prefetch=wanted.prefetch,
        query_filter=wanted.filter,
        using=wanted.using,
        limit=wanted.limit or 10,
        with_payload=wanted.with_payload or False,
    )


_ONE = "/collections/{collection}"
ROUTES: tuple[tuple[str, str, Answer], ...] = (
    ("GET", "/collections", _collections),
    ("GET", _ONE + "/exists", _exists),
    ("GET", _ONE, _collection),
    ("PUT", _ONE, create),
    ("DELETE", _ONE, _delete),
    ("PUT", _ONE + "/index", create_index),
    ("PUT", _ONE + "/points", upsert),
    ("POST", _ONE + "/points", _points),
    ("POST", _ONE + "/points/delete", _delete_points),
    ("POST", _ONE + "/points/payload", _set_payload),
    ("POST", _ONE + "/points/scroll", _scroll),
    ("POST", _ONE + "/points/query", _query),
)
