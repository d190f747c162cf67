"""The search index on a Qdrant server.

A point has a sparse vector of the words of messages and summary and, with an embedder, a vector of each message.
"""

import asyncio
import base64
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from json import JSONDecodeError
from operator import methodcaller
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import httpx
import numpy as np
from qdrant_client import AsyncQdrantClient, models
from qdrant_client.common.client_exceptions import QdrantException, ResourceExhaustedResponse
from qdrant_client.http.exceptions import ApiException, ResponseHandlingException, UnexpectedResponse

from afterword.schemas.base import point_id
from afterword.streams.errors import ConfigurationError, StoreRefuses, StoreUnavailable
from afterword.streams.settings import EmbedderSettings, Qdrant, variable, without_credentials
from afterword.streams.stores.episodes import StoredEpisode, parts
from afterword.streams.stores.index import DEPTH, Candidate, Dense, Query, SearchText
from afterword.streams.stores.packing import LAST_END, packed_texts, packed_words
from afterword.streams.tasks import Batches, in_parts
from afterword.streams.tls import verifying_context
from afterword_text.language import STEMMER, hashed, query_words

STORE = "qdrant"
TIMEOUT_SECONDS = 10
"""Timeout of a request."""
DEFAULT_URL = "http://127.0.0.1:6333"
"""Default address of a Qdrant server."""
DEFAULT_PORT = 6333
"""Port of an address without one, as in the client."""

BROKEN: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    ((ssl.SSLCertVerificationError,), "its certificate is not trusted"),
    ((ssl.SSLError,), "no TLS connection could be made"),
    ((socket.gaierror,), "the name of its host cannot be resolved"),
    ((ConnectionRefusedError,), "it refused the connection"),
    ((TimeoutError, httpx.TimeoutException), "it did not answer in time"),
    ((ConnectionResetError, BrokenPipeError, httpx.RemoteProtocolError), "it closed the connection"),
    ((ValueError,), "what answers is not a Qdrant server"),
)
"""What the cause of a client's error means; the first match applies."""

NOT_FOUND = 404
CONFLICT = 409
TOO_MANY_REQUESTS = 429
SERVER_ERRORS = 500

OLDEST_VERSION = (1, 17)
"""The oldest version that is tested. `update_filter`, which fences revisions, came with 1.16."""

DELETED = "deleted"
"""Payload field of what remains of a deleted episode: without vectors, texts and users, so that no search finds it."""
KEPT = models.IsEmptyCondition(is_empty=models.PayloadField(key=DELETED))
DIGITS = 5
"""Digits after the point of a vector's numbers, which are sent as text."""
WORDS, VECTORS = "words", "messages"
"""Names of a point's vectors, and of the payload fields that the ranking reads."""

PAYLOAD = {
    *("episode_id", "revision", "conversation_id", "agent_id", "tenant_id"),
    *("started_at", "ended_at"),
}
"""Fields of an episode that filters compare or that a candidate has."""
PAGE_SIZE = 1000
MOST_TOGETHER = 32
"""Maximum number of episodes in one request: some megabytes, of the 32 that a server takes."""
SEGMENTS_PUSHED = 4
"""The log keeps its open segment and a closed one. Ids at random do not fill all shards alike."""
DEFAULT_SEGMENT_MB = 32
FILLERS, MEBIBYTE = 16, 1 << 20
"""Number of points that fill a mebibyte of the log."""
USERS = "user_ids"
"""Payload field with the users who find the episode."""
KEYWORD, TIME = models.PayloadSchemaType.KEYWORD, models.PayloadSchemaType.DATETIME
INDEXES: Mapping[str, models.PayloadSchemaType | models.KeywordIndexParams] = {
    USERS: models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, is_tenant=True),
    **dict.fromkeys(("tenant_id", "agent_id", "conversation_id"), KEYWORD),
    **dict.fromkeys(("started_at", "ended_at"), TIME),
    "revision": models.PayloadSchemaType.INTEGER,
    DELETED: models.PayloadSchemaType.BOOL,
}
"""Index of each payload field that searches or updates filter or sort by: a server in strict mode refuses others."""
FOUND = ["episode_id", "conversation_id", "message_ids", "started_at", "ended_at"]
RANKED = [*FOUND, WORDS, VECTORS]
"""Payload fields of a candidate that is found by its time, and of one that is ranked."""
CREATED_WITH: Mapping[str, Any] = {
    # every search is of one user: the graph of all of them would never be used
    "hnsw_config": models.HnswConfigDiff(m=0, payload_m=16),
    # so that later writes soon push deleted texts out of the log and the segments: docs/how-to/privacy.md
    "wal_config": models.WalConfigDiff(wal_capacity_mb=1),
    "optimizers_config": models.OptimizersConfigDiff(deleted_threshold=0.001, vacuum_min_vector_number=100),
}
"""What a collection that we create has besides its vectors; one that exists keeps its own."""
RANGES = {"<": "lt", ">=": "gte"}
ANOTHER = "Delete it, or name another one, then run: afterword index rebuild"

Call = Callable[[Any], Any]
"""Calls one method of the client."""
K1 = 1.2
B = 0.75
"""The defaults of Robertson and Zaragoza, and of Lucene."""
AVERAGE_LENGTH = 130
"""Average number of terms in messages and summary. It is fixed, so that a vector never depends on others."""


def collection_name(collection: str, embedder_model: str | None) -> str:
    """Return the collection's name, such as `episodes`, or `episodes-nomic-embed-text` with vectors of that model."""
    return f"{collection}-{re.sub(r'[^A-Za-z0-9_.]+', '-', embedder_model)}" if embedder_model else collection


class HttpConnection:
    """A Qdrant server, whose version is checked before its first use."""

    def __init__(self, client: AsyncQdrantClient, name: str = STORE, answer_seconds: float | None = None) -> None:
        self._client = client
        self._name = name
        self._answer_seconds = answer_seconds
        self.version: str | None = None

    async def run(self, call: Call) -> Any:
        with qdrant_errors(self._name):
            if self.version is None:
                async with asyncio.timeout(self._answer_seconds):
                    version = (await self._client.info()).version
                require_supported(version, self._name)
                self.version = version
            return await call(self._client)

    async def close(self) -> None:
        await self._client.close()


def rest_address(settings: Qdrant) -> str:
    """Return the URL that the client uses, with a scheme and a port but without a user. Raises: ConfigurationError."""
    url = settings.url or DEFAULT_URL
    try:
        parts = urlsplit(url if "://" in url else f"{'https' if settings.api_key else 'http'}://{url}")
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError:
        host = ""
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigurationError(setting=variable(("qdrant", "url")), problem="is not an http address")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}{parts.path}"


def connect_qdrant(settings: Qdrant) -> HttpConnection:
    """Return a connection, which opens on first use. Raises: ConfigurationError."""
    client = AsyncQdrantClient(
        url=rest_address(settings),
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        timeout=TIMEOUT_SECONDS,
        check_compatibility=False,  # the check would block on the server at once; `require_supported` checks later
        verify=verifying_context(),
        limits=httpx.Limits(),  # to its own machine, the client connects anew for each request by default
        headers={"Accept-Encoding": "identity"},  # packed words and vectors get hardly smaller, and it takes a while
    )
    name = f"{STORE} at {without_credentials(settings.url or DEFAULT_URL)}"
    return HttpConnection(client, name, settings.answer_seconds)


REFUSALS = {
    400: "did not understand the request",
    401: f"rejected the API key (401): check {variable(('qdrant', 'api_key'))}",
    403: "does not permit this with the API key",
    404: "has no such collection, or is not a Qdrant server",
    409: "already has what was to be created",
    429: "gets too many requests",
}
"""Meanings of a server's status; with any other, the server failed or refused."""


@contextmanager
def qdrant_errors(name: str) -> Iterator[None]:
    """Turn the client's errors into StoreUnavailable, without their text, which may quote content."""
    try:
        yield
    except (UnexpectedResponse, ResourceExhaustedResponse) as error:
        status = getattr(error, "status_code", None) or TOO_MANY_REQUESTS
        said = REFUSALS.get(status) or ("failed" if status >= SERVER_ERRORS else "refused the request")
        problem = said if str(status) in said else f"{said} ({status})"
        raise StoreRefuses(store=name, problem=problem, status=status) from error
    except (ApiException, QdrantException, OSError, JSONDecodeError, UnicodeDecodeError) as error:
        met = error.source if isinstance(error, ResponseHandlingException) else error
        known = (said for cause in causes(met) for kinds, said in BROKEN if isinstance(cause, kinds))
        raise StoreUnavailable(store=name, problem=next(known, type(met).__name__)) from error


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the error and its causes. A group has one error for each address of a host; only the first one counts."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__


def require_supported(version: str, name: str) -> None:
    """Refuse a server that would ignore what it does not know. Raises: ConfigurationError."""
    match = re.match(r"(\d+)\.(\d+)", version)
    if not match or (int(match[1]), int(match[2])) < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        problem = (
            f"{name} is version {version!r}; {oldest} or later is needed: with an older one a late, lower revision may "
            "replace a higher one"
        )
        raise ConfigurationError(setting=variable(("qdrant", "url")), problem=problem)


class QdrantIndex:
    """An EpisodeIndex, whose collection is created by the first write.

    The collection's name contains the embedder's model. Vectors of two models cannot be compared, so another model
    means another collection, which `afterword index rebuild` fills.
    """

    def __init__(self, connection: HttpConnection, collection: str, embedder_model: str | None = None) -> None:
        self.collection = collection_name(collection, embedder_model)
        self._model = embedder_model
        self._connection = connection
        self._ready = False
        self._creating = asyncio.Lock()
        self._batches = Batches(self._upserted, MOST_TOGETHER)

    async def put(
        self, episode: StoredEpisode, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        # stemming a long episode takes a while
        point = await asyncio.to_thread(_point, episode, texts, vectors)
        if not vectors and self._model is not None and not await self._run("collection_exists"):
            return  # the first vector determines the dimension with which the collection is created
        await self._ensure_collection(len(next(iter(vectors.values()))) if vectors else None)
        await self._upsert(point, episode.summary.revision)

    async def hand_over(self, episode: StoredEpisode) -> bool:
        summary = episode.summary
        if not await self.revisions([summary.episode_id]):
            return False
        of_id = models.HasIdCondition(has_id=[point_id(summary.episode_id)])
        earlier = models.Filter(must=[of_id, _within("revision", models.Range(lte=summary.revision)), KEPT])
        payload = {USERS: list(episode.writers), "revision": summary.revision}
        await self._run("set_payload", payload=payload, points=earlier, wait=True)
        return True

    async def remove(self, episode_id: str, revision: int) -> None:
        if self._model is None:
            await self._ensure_collection(None)
        elif not await self._run("collection_exists"):  # see `put`
            return
        # deleted first, because the engine keeps the bytes of a point that is only overwritten for good
        point, within = point_id(episode_id), _within("revision", models.Range(lte=revision))
        gone = models.FilterSelector(filter=models.Filter(must=[models.HasIdCondition(has_id=[point]), within]))
        await self._run("delete", points_selector=gone, wait=True)
        payload = {"episode_id": episode_id, "revision": revision, DELETED: True}
        # no search finds a point without users
        await self._upsert(models.PointStruct(id=point, vector={}, payload=payload), revision)

    async def push_out_removed(self) -> None:
        info = await self._asked("get_collection")
        if info is None:
            return
        segment_mb = info.config.wal_config.wal_capacity_mb if info.config.wal_config else DEFAULT_SEGMENT_MB
        for _ in range(SEGMENTS_PUSHED * segment_mb * (info.config.params.shard_number or 1)):
            # random ids, so that each shard gets its part; no search finds a point without users
            payload = {DELETED: True, "filler": "-" * (MEBIBYTE // FILLERS)}
            points = [models.PointStruct(id=str(uuid4()), vector={}, payload=payload) for _ in range(FILLERS)]
            await self._run("upsert", points=points, wait=True)
            await self._run("delete", points_selector=[point.id for point in points], wait=True)

    async def _upsert(self, point: models.PointStruct, revision: int) -> None:
        """Write the point unless there is a later revision."""
        # the same episode's point and what remains of it must not be in one request, whose order means nothing
        await self._batches.result(point, (revision, DELETED in (point.payload or {})))

    async def _upserted(self, kind: tuple[int, bool], points: list[models.PointStruct]) -> Sequence[None]:
        revision, _ = kind
        # points that an update may overwrite (Qdrant 1.16); a new point is always inserted
        earlier = _within("revision", models.Range(lt=revision))
        same = _within("revision", models.Range(lte=revision))
        overwritten = models.Filter(should=[earlier, models.Filter(must=[same, KEPT])])
        try:
            await self._run("upsert", points=points, wait=True, update_filter=overwritten)
        except StoreRefuses as error:
            if error.status == NOT_FOUND:
                self._ready = False  # the collection was deleted, or a server came back without it
            raise
        return [None] * len(points)

    async def search(self, query: Query, dense: Dense | None = None) -> list[Candidate]:
        request = await asyncio.to_thread(_request, query, dense)
        if not request:
            return []
        answer = await self._asked("query_points", **request)
        return [_candidate(point.payload) for point in answer.points] if answer else []

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        ids = {point_id(episode): episode for episode in episode_ids}
        revisions: dict[str, int] = {}
        for points in in_parts(list(ids), PAGE_SIZE):
            page = await self._asked("retrieve", ids=points, with_payload=["revision", DELETED]) or []
            revisions |= {ids[point.id]: point.payload["revision"] for point in page if not point.payload.get(DELETED)}
        return revisions

    async def pages(self) -> AsyncIterator[dict[str, int]]:
        read, following = ["episode_id", "revision", DELETED], None
        while page := await self._asked("scroll", offset=following, limit=PAGE_SIZE, with_payload=read):
            points, following = page
            payloads = [point.payload for point in points if not point.payload.get(DELETED)]
            if points:
                yield {payload["episode_id"]: payload["revision"] for payload in payloads}
            if following is None:
                return

    async def forget(self, episode_ids: Sequence[str]) -> None:
        await self._run("delete", points_selector=list(map(point_id, episode_ids)), wait=True)

    async def close(self) -> None:
        await self._connection.close()

    async def _run(self, method: str, **asked: Any) -> Any:
        """Call a method of the client with the collection's name."""
        return await self._connection.run(methodcaller(method, self.collection, **asked))

    async def _asked(self, method: str, **asked: Any) -> Any:
        """Return the answer, or None if there is no collection, which is asked for only then."""
        try:
            return await self._run(method, **asked)
        except StoreRefuses as error:
            if error.status != NOT_FOUND:
                raise
            # another process may have created it just now
            return await self._run(method, **asked) if await self._run("collection_exists") else None

    async def prepare(self) -> None:
        await self._check(None)

    async def _check(self, dimension: int | None) -> set[str] | None:
        """Return the fields that have a payload index; None if there is no collection. Raises: ConfigurationError."""
        info = await self._asked("get_collection")
        if info is None:
            return None
        if differences := mismatches(info, dimension, has_vectors=bool(self._model or dimension)):
            problem = f"collection {self.collection} does not fit: {'; '.join(differences)}. {ANOTHER}"
            raise ConfigurationError(setting=variable(("qdrant", "collection")), problem=problem)
        return set(info.payload_schema)

    async def _ensure_collection(self, dimension: int | None) -> None:
        async with self._creating:
            if self._ready:
                return
            indexed = await self._check(dimension)
            if indexed is None:
                indexed = set() if await self._created(dimension) else await self._check(dimension)
            for field in INDEXES.keys() - (indexed or set()):
                await self._run("create_payload_index", field_name=field, field_schema=INDEXES[field])
            self._ready = True

    async def _created(self, dimension: int | None) -> bool:
        """Create the collection; return False if another process was faster."""
        best = models.MultiVectorConfig(comparator=models.MultiVectorComparator.MAX_SIM)
        dense = models.VectorParams(size=dimension or 0, distance=models.Distance.COSINE, multivector_config=best)
        sparse = models.SparseVectorParams(modifier=models.Modifier.IDF)
        vectors = {"vectors_config": {VECTORS: dense} if dimension else {}, "sparse_vectors_config": {WORDS: sparse}}
        try:
            await self._run("create_collection", **vectors, metadata={"stemmer": STEMMER}, **CREATED_WITH)
        except StoreRefuses as error:
            if error.status != CONFLICT:
                raise
            return False
        return True


def mismatches(info: models.CollectionInfo, dimension: int | None, *, has_vectors: bool) -> list[str]:
    """Say how an existing collection does not fit. `dimension` is that of the embedder's vectors, if it is known."""
    params = info.config.params
    words, dense = (params.sparse_vectors or {}).get(WORDS), params.vectors or {}
    is_unnamed = isinstance(dense, models.VectorParams)
    vector = dense.get(VECTORS) if has_vectors and not isinstance(dense, models.VectorParams) else None
    several = vector and vector.multivector_config
    stemmer = (info.config.metadata or {}).get("stemmer", STEMMER)
    said = {
        "it has one vector without a name": is_unnamed,
        f"it has no sparse vector {WORDS}": words is None,
        f"its sparse vector {WORDS} lacks the modifier idf": words and words.modifier != models.Modifier.IDF,
        f"its words were stemmed by PyStemmer {stemmer}, not {STEMMER}": stemmer != STEMMER,
        f"it has no vector {VECTORS}": has_vectors and vector is None,
    }
    if vector:
        best = models.MultiVectorComparator.MAX_SIM
        said |= {
            f"its vectors have dimension {vector.size}, the embedder's have {dimension}": (
                dimension not in (None, vector.size)
            ),
            f"its vectors have the distance {vector.distance}, not Cosine": vector.distance != models.Distance.COSINE,
            "its vectors are no multivectors with max_sim": not several or several.comparator != best,
            "its vectors are whole numbers": vector.datatype == models.Datatype.UINT8,
        }
    for field, kind in INDEXES.items():
        index, wanted = info.payload_schema.get(field), kind if isinstance(kind, models.PayloadSchemaType) else KEYWORD
        if index:
            said[f"its index of {field} is {index.data_type}, not {wanted}"] = index.data_type != wanted
    return [problem for problem, is_so in said.items() if is_so]


def open_index(settings: Qdrant, embedder: EmbedderSettings) -> QdrantIndex:
    """Return the configured index, in the configured embedder's collection; it connects on first use."""
    return QdrantIndex(connect_qdrant(settings), settings.collection, embedder.vectors_model)


async def check(settings: Qdrant, embedder: EmbedderSettings) -> str:
    """Describe the server with its version.

    Raises: ConfigurationError if the server is too old, or its collection does not fit; StoreUnavailable.
    """
    connection = connect_qdrant(settings)
    try:
        await QdrantIndex(connection, settings.collection, embedder.vectors_model).prepare()
    finally:
        await connection.close()
    address = without_credentials(settings.url) if settings.url else "at its default address"
    return f"{address}, version {connection.version}"


def _point(
    episode: StoredEpisode, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None
) -> models.PointStruct:
    summary = episode.summary
    words, packed = packed_texts(summary, texts, vectors)
    sparse = document_vector(words)
    named: dict[str, Any] = {WORDS: sparse} if sparse.indices else {}
    if vectors:
        named[VECTORS] = np.array(list(vectors.values()), np.float64).round(DIGITS).tolist()
    payload = {
        **summary.model_dump(mode="json", include=PAYLOAD),
        "message_ids": list(texts),
        USERS: list(episode.writers),
        WORDS: base64.b64encode(words).decode(),
        VECTORS: base64.b64encode(packed).decode(),
    }
    return models.PointStruct(id=point_id(summary.episode_id), vector=named, payload=payload)


def _candidate(payload: Mapping[str, Any]) -> Candidate:
    return Candidate(
        payload["episode_id"],
        payload["conversation_id"],
        payload["message_ids"],
        datetime.fromisoformat(payload["started_at"]),
        datetime.fromisoformat(payload["ended_at"]),
        base64.b64decode(payload.get(WORDS, "")),
        base64.b64decode(payload.get(VECTORS, "")),
    )


def _request(query: Query, dense: Dense | None) -> dict[str, Any]:
    """Return the request for the best episodes by words and by vectors, or for those in the query's order.

    It is empty if the query has no words. Fusion gives the payload of an episode that both lists have once.
    """
    allowed = _allowed_by(query)
    if query.order:
        direction = models.Direction.DESC if query.order == "newest" else models.Direction.ASC
        order = models.OrderByQuery(order_by=models.OrderBy(key="started_at", direction=direction))
        return {"query": order, "query_filter": allowed, "limit": query.k, "with_payload": FOUND}
    sparse, most = query_vector(query.text), max(DEPTH, query.k)
    asked: dict[str, Any] = ({WORDS: sparse} if sparse.indices else {}) | ({VECTORS: [list(dense)]} if dense else {})
    lists = [models.Prefetch(query=vector, using=name, filter=allowed, limit=most) for name, vector in asked.items()]
    fused = models.FusionQuery(fusion=models.Fusion.RRF)
    limit = most * len(lists)
    return {"prefetch": lists, "query": fused, "limit": limit, "with_payload": RANKED} if lists else {}


def _allowed_by(query: Query) -> models.Filter:
    no_tenant = models.IsEmptyCondition(is_empty=models.PayloadField(key="tenant_id"))
    tenant = no_tenant if query.tenant_id is None else _is("tenant_id", query.tenant_id)
    filters = [
        _within(field, models.DatetimeRange(**{RANGES[operator]: value})) if operator else _is(field, value)
        for field, operator, value in parts(query.filters())
    ]
    return models.Filter(must=[_is(USERS, query.user_id), tenant, *filters])


def _is(field: str, value: str) -> models.FieldCondition:
    return models.FieldCondition(key=field, match=models.MatchValue(value=value))


def _within(field: str, values: models.Range | models.DatetimeRange) -> models.FieldCondition:
    return models.FieldCondition(key=field, range=values)


def document_vector(packed: bytes) -> models.SparseVector:
    """Make an episode's sparse vector from what `pack_words` returned; empty if there are no words.

    It has weighted term frequencies, and Qdrant multiplies them by IDF at query time. The score of a document d for a
    query q is the sum over q's terms t of IDF(t) · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg_len)): Robertson & Zaragoza,
    "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).
    """
    words = packed_words(packed)
    terms, counts = np.unique(words[words > LAST_END], return_counts=True)
    weights = counts * (K1 + 1) / (counts + K1 * (1 - B + B * counts.sum() / AVERAGE_LENGTH))
    return models.SparseVector(indices=terms.tolist(), values=weights.tolist())


def query_vector(text: str) -> models.SparseVector:
    """Return the vector of a query: every form of its words, once. Forms that its language lacks match no document."""
    terms = sorted({number for word in query_words(text) for number in hashed(word.forms)})
    return models.SparseVector(indices=terms, values=[1.0] * len(terms))
