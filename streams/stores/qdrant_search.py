"""Searching Qdrant: one request, which ranks by each vector and fuses the rankings."""

from typing import Any

from qdrant_client import models

from afterword.streams.stores.fusion import DENSE, DEPTH, SUMMARY, TEXT, WEIGHTS, K
from afterword.streams.stores.index import Dense, Query, Recalled
from afterword.streams.stores.sparse import query_vector


def request(query: Query, dense: Dense | None) -> dict[str, Any] | None:
    """Arguments of `query_points`, but for the collection; None when there is nothing to search for."""
    vectors = _vectors(query.text, dense)
    if not vectors:
        return None
    prefetch = [
        models.Prefetch(query=vector, using=name, filter=_of(query), limit=max(DEPTH, query.k))
        for name, vector in vectors.items()
    ]
    fusion = models.RrfQuery(rrf=models.Rrf(k=K, weights=[WEIGHTS[name] for name in vectors]))
    # the filter once more: nothing of anybody else gets out, whatever becomes of the prefetches
    return {"prefetch": prefetch, "query": fusion, "query_filter": _of(query), "limit": query.k, "with_payload": True}


def recalled(point: models.ScoredPoint) -> Recalled:
    """Reads what `payload` wrote."""
    found = point.payload or {}
    return Recalled(**{**found, "score": point.score, "source": found["quality"]["source"]})


def _vectors(text: str, dense: Dense | None) -> dict[str, Any]:
    sparse = query_vector(text)
    words = models.SparseVector(indices=list(sparse.indices), values=list(sparse.values))
    return ({TEXT: words, SUMMARY: words} if sparse.indices else {}) | ({DENSE: list(dense)} if dense else {})


def _of(query: Query) -> models.Filter:
    conditions: list[models.Condition] = [_is("user_id", query.user_id), _of_tenant(query.tenant_id)]
    if query.agent_id is not None:
        conditions.append(_is("agent_id", query.agent_id))
    if query.conversation_id is not None:
        conditions.append(_is("conversation_id", query.conversation_id))
    return models.Filter(must=conditions)


def _of_tenant(tenant_id: str | None) -> models.Condition:
    if tenant_id is None:
        return models.IsEmptyCondition(is_empty=models.PayloadField(key="tenant_id"))
    return _is("tenant_id", tenant_id)


def _is(field: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=field, match=models.MatchValue(value=value))
