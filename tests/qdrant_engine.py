"""Answers of a Qdrant server over HTTP by Qdrant's own engine, which has no server.

The engine stores, filters, sorts and scores the points. What belongs to a server (which collections and indexes there
are, and the HTTP around them) is that of `qdrant_answers`.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import qdrant_edge as engine
from qdrant_client import QdrantClient
from qdrant_client.http import models

from tests import qdrant_answers

RRF_K, EF_CONSTRUCT, FULL_SCAN_KILOBYTES = 2, 100, 10_000
"""The server's defaults."""


def shard_of(client: QdrantClient, name: str) -> engine.EdgeShard:
    client.get_collection(name)  # which may not exist
    shard: engine.EdgeShard = vars(client)["shards"][name]
    return shard


def _create(directory: Path, has_log: bool, client: QdrantClient, name: str, body: bytes) -> Any:
    """Create a shard in the directory."""
    answer = qdrant_answers.create(client, name, body)
    wanted = models.CreateCollection.model_validate_json(body)
    optimizers = wanted.optimizers_config or models.OptimizersConfigDiff()
    best = engine.MultiVectorConfig(engine.MultiVectorComparator.MaxSim)
    dense = wanted.vectors if isinstance(wanted.vectors, dict) else {}
    graph = wanted.hnsw_config or models.HnswConfigDiff(m=16)
    config = engine.EdgeConfig(
        hnsw_config=engine.HnswIndexConfig(graph.m or 0, EF_CONSTRUCT, FULL_SCAN_KILOBYTES, payload_m=graph.payload_m),
        vectors={
            vector: engine.EdgeVectorParams(params.size, engine.Distance.Cosine, multivector_config=best)
            for vector, params in dense.items()
        },
        sparse_vectors={
            vector: engine.EdgeSparseVectorParams(modifier=engine.Modifier.Idf)
            for vector in wanted.sparse_vectors or ()
        },
        optimizers=engine.EdgeOptimizersConfig(
            deleted_threshold=optimizers.deleted_threshold, vacuum_min_vector_number=optimizers.vacuum_min_vector_number
        ),
        wal_enabled=has_log,
    )
    vars(client).setdefault("shards", {})[name] = engine.EdgeShard.create(str(directory / name), config)
    return answer


def _create_index(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.CreateFieldIndex.model_validate_json(body)
    types = engine.PayloadSchemaType
    named = {"datetime": types.Datetime, "integer": types.Integer, "bool": types.Bool}
    kind: Any = engine.KeywordIndexParams(is_tenant=True)
    if isinstance(wanted.field_schema, str):
        kind = named.get(wanted.field_schema, types.Keyword)
    shard_of(client, name).update(engine.UpdateOperation.create_field_index(wanted.field_name, kind))
    return qdrant_answers.create_index(client, name, body)


def _upsert(client: QdrantClient, name: str, body: bytes) -> Any:
    return upserted(shard_of(client, name), models.PointsList.model_validate_json(body))


def upserted(shard: engine.EdgeShard, wanted: models.PointsList) -> models.UpdateResult:
    points = [engine.Point(UUID(str(one.id)), _vectors(one.vector), one.payload) for one in wanted.points]
    condition = _filter(wanted.update_filter) if wanted.update_filter else None
    shard.update(engine.UpdateOperation.upsert_points(points, condition))
    return models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)


def _delete_points(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = qdrant_answers.SELECTOR.validate_json(body)
    if isinstance(wanted, models.FilterSelector):
        operation = engine.UpdateOperation.delete_points_by_filter(_filter(wanted.filter))
    else:
        operation = engine.UpdateOperation.delete_points([UUID(str(one)) for one in wanted.points])
    shard_of(client, name).update(operation)
    return models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)


def _set_payload(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.SetPayload.model_validate_json(body)
    assert wanted.filter
    operation = engine.UpdateOperation.set_payload_by_filter(_filter(wanted.filter), wanted.payload)
    shard_of(client, name).update(operation)
    return models.UpdateResult(operation_id=0, status=models.UpdateStatus.COMPLETED)


def _points(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.PointRequest.model_validate_json(body)
    ids = [UUID(str(one)) for one in wanted.ids]
    return [_record(one) for one in shard_of(client, name).retrieve(ids, with_payload=True, with_vector=False)]


def _scroll(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.ScrollRequest.model_validate_json(body)
    offset = UUID(str(wanted.offset)) if wanted.offset else None
    request = engine.ScrollRequest(offset=offset, limit=wanted.limit, with_payload=True)
    points, following = shard_of(client, name).scroll(request)
    return {"points": list(map(_record, points)), "next_page_offset": following and str(following)}


def _query(client: QdrantClient, name: str, body: bytes) -> Any:
    wanted = models.QueryRequest.model_validate_json(body)
    shard = shard_of(client, name)
    qdrant_answers.require_indexes(client, name, *qdrant_answers.asked_of(wanted))
    return {"points": queried(shard, wanted)}


def queried(shard: engine.EdgeShard, wanted: models.QueryRequest) -> list[dict[str, Any]]:
    asked: list[models.Prefetch] = wanted.prefetch if isinstance(wanted.prefetch, list) else []
    lists = [
        engine.Prefetch(one.limit or 10, query=_nearest(one), filter=one.filter and _filter(one.filter))
        for one in asked
    ]
    scored: Any = engine.Fusion.Rrf(RRF_K)
    if isinstance(wanted.query, models.OrderByQuery):
        order = wanted.query.order_by
        is_newest = isinstance(order, models.OrderBy) and order.direction == models.Direction.DESC
        direction = engine.Direction.Desc if is_newest else engine.Direction.Asc
        scored = engine.OrderBy(order.key if isinstance(order, models.OrderBy) else order, direction)
    request = engine.QueryRequest(
        wanted.limit or 10,
        query=scored,
        prefetches=lists,
        filter=wanted.filter and _filter(wanted.filter),
        with_payload=wanted.with_payload if isinstance(wanted.with_payload, list) else True,
    )
    return [{**_record(one), "version": one.version, "score": one.score} for one in shard.query(request)]


def _nearest(prefetch: models.Prefetch) -> engine.Query:
    return engine.Query.Nearest(_vector(prefetch.query), prefetch.using)


def _vectors(vector: Any) -> Any:
    return {name: _vector(one) for name, one in vector.items()}


def _vector(vector: Any) -> Any:
    if isinstance(vector, models.SparseVector):
        return engine.SparseVector(vector.indices, vector.values)
    return vector


def _filter(wanted: models.Filter) -> engine.Filter:
    parts = {part: getattr(wanted, part) for part in ("must", "should", "must_not")}
    return engine.Filter(**{part: [_condition(one) for one in given] for part, given in parts.items() if given})


def _condition(wanted: Any) -> Any:
    match wanted:
        case models.Filter():
            return _filter(wanted)
        case models.IsEmptyCondition():
            return engine.IsEmptyCondition(wanted.is_empty.key)
        case models.HasIdCondition():
            return engine.HasIdCondition({UUID(str(one)) for one in wanted.has_id})
        case models.FieldCondition(match=models.MatchValue() as match):
            return engine.FieldCondition(wanted.key, match=engine.MatchValue(match.value))
        case models.FieldCondition(range=models.Range() as within):
            return engine.FieldCondition(wanted.key, range=engine.RangeFloat(**within.model_dump()))
        case models.FieldCondition(range=models.DatetimeRange() as within):
            times = within.model_dump(mode="json", exclude_none=True)
            return engine.FieldCondition(wanted.key, range=engine.RangeDateTime(**times))
    raise NotImplementedError(wanted)


def _record(point: Any) -> dict[str, Any]:
    return {"id": str(point.id), "payload": point.payload}


OWN = {
    ("PUT", "/collections/{collection}/index"): _create_index,
    ("PUT", "/collections/{collection}/points"): _upsert,
    ("POST", "/collections/{collection}/points/delete"): _delete_points,
    ("POST", "/collections/{collection}/points"): _points,
    ("POST", "/collections/{collection}/points/payload"): _set_payload,
    ("POST", "/collections/{collection}/points/scroll"): _scroll,
    ("POST", "/collections/{collection}/points/query"): _query,
}


def routes_in(directory: Path, *, has_log: bool = False) -> Sequence[tuple[str, str, qdrant_answers.Answer]]:
    """Return the routes of a server whose collections are in the directory.

    By default, they have no log, because the engine cannot set the size of a log's segments.
    """
    own: dict[tuple[str, str], qdrant_answers.Answer]
    own = {**OWN, ("PUT", "/collections/{collection}"): partial(_create, directory, has_log)}
    return [(method, path, own.get((method, path), answer)) for method, path, answer in qdrant_answers.ROUTES]
