"""The search index in the SQLite file: FTS5 ranks words by `bm25()`, and NumPy ranks vectors by their cosines.

FTS5 gets stems, each behind a digest of the episode's owner. So a search reads only what its owner has, and a word is
as rare as it is among the owner's episodes.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import apsw
import numpy as np
import orjson
from numpy.typing import NDArray

from afterword.schemas import SummaryCreated
from afterword.schemas.base import EPOCH
from afterword.streams.errors import ConfigurationError
from afterword.streams.language import detect, plausible, stem_words
from afterword.streams.stores.arguments import require_texts
from afterword.streams.stores.index import (
    DENSE,
    DEPTH,
    SUMMARY,
    TEXT,
    Dense,
    Query,
    RankingScores,
    Recalled,
    fused,
    payload,
    recalled,
    summary_text,
)
from afterword.streams.stores.sqlite import SqliteFile, insert, rows

BM25 = {TEXT: "bm25(words, 1, 0)", SUMMARY: "bm25(words, 0, 1)"}
"""FTS5's scores by column: the lower, the better."""
COORDINATE = np.dtype("<f4")
OWNER_BYTES = 6
"""Length of an owner's digest; should two owners have the same one, a search still compares the owners themselves."""
OWNER = 2
"""Conditions that every query has: user and tenant."""
ALL = -1
"""No limit."""

Ranking = dict[int, float]
"""Scores of episodes by the ids of their points, best first."""


class Point(NamedTuple):
    """An episode as it is indexed."""

    row: Mapping[str, Any]
    text: str
    summary: str


class Allowed(NamedTuple):
    """The condition on points that a query may find, and its values."""

    condition: str
    values: Mapping[str, Any]
    is_every: bool
    """All of the owner's episodes are allowed."""


class SqliteIndex:
    """An EpisodeIndex. `model` is the embedder's, which made all vectors that are put and searched for."""

    def __init__(self, file: SqliteFile, model: str | None = None) -> None:
        self._file = file
        self._model = model

    async def put(self, summary: SummaryCreated, raw_text: str, dense: Dense | None = None) -> None:
        # stemming a long episode takes a while, and other processes write meanwhile
        point = await self._file.apart(lambda: _point(summary, raw_text, self._model))
        if await self._file.write(lambda connection: _put(connection, point, dense)):
            await self._file.empty_log()

    async def remove(self, episode_id: str, revision: int) -> None:
        await self._file.write(lambda connection: _remove(connection, episode_id, revision))
        await self._file.empty_log()

    async def search(self, query: Query, dense: Dense | None = None) -> list[Recalled]:
        found = await self._file.read(lambda connection: _search(connection, query, dense, self._model))
        return [recalled(orjson.loads(kept), score, scores) for kept, score, scores in found]

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        require_texts(episode_ids=episode_ids)
        select = """SELECT episode_id, revision FROM points
            WHERE episode_id IN (SELECT value FROM json_each(?)) AND payload IS NOT NULL AND model IS ?"""
        values = orjson.dumps(episode_ids).decode(), self._model
        return dict(await self._file.read(lambda connection: rows(connection, select, values)))

    async def ping(self) -> None:
        await self._file.ping()

    async def close(self) -> None:
        await self._file.close()


def _point(summary: SummaryCreated, raw_text: str, model: str | None) -> Point:
    owner, told = _digest(summary.user_id, summary.tenant_id), summary_text(summary)
    row = {
        **summary.model_dump(include={"episode_id", "revision", "tenant_id", "user_id", "agent_id", "conversation_id"}),
        "started_at": _microseconds(summary.started_at),
        "ended_at": _microseconds(summary.ended_at),
        "model": model,
        "payload": orjson.dumps(payload(summary)).decode(),
    }
    text, summarized = (" ".join(_stems(part, [detect(part)], owner)) for part in (raw_text, told))
    return Point(row, text, summarized)


def _put(connection: apsw.Connection, point: Point, dense: Dense | None) -> bool:
    """Write an episode, unless a later revision is there; return whether it replaced one."""
    kept = _kept(connection, point.row["episode_id"])
    if kept and (kept.revision, kept.is_removed) > (point.row["revision"], False):
        return False
    if kept:
        _delete(connection, kept.id)
    row = insert(connection, "points", point.row)
    connection.execute("INSERT INTO words (rowid, text, summary) VALUES (?, ?, ?)", (row, point.text, point.summary))
    if dense:
        other = "SELECT length(vector) FROM vectors JOIN points USING (id) WHERE model IS ? LIMIT 1"
        for (kept_bytes,) in rows(connection, other, (point.row["model"],)):
            _require_dimension(kept_bytes, dense)
        connection.execute("INSERT INTO vectors (id, vector) VALUES (?, ?)", (row, _unit(dense).tobytes()))
    return kept is not None


def _remove(connection: apsw.Connection, episode_id: str, revision: int) -> None:
    kept = _kept(connection, episode_id)
    if kept and kept.revision > revision:
        return
    if kept:
        _delete(connection, kept.id)
    insert(connection, "points", {"episode_id": episode_id, "revision": revision})


class Kept(NamedTuple):
    """What is indexed of an episode."""

    id: int
    revision: int
    is_removed: bool


def _kept(connection: apsw.Connection, episode_id: str) -> Kept | None:
    select = "SELECT id, revision, payload IS NULL FROM points WHERE episode_id = ?"
    return next((Kept(*found) for found in rows(connection, select, (episode_id,))), None)


def _delete(connection: apsw.Connection, row: int) -> None:
    for table in ("words", "vectors", "points"):
        connection.execute(f"DELETE FROM {table} WHERE rowid = ?", (row,))  # noqa: S608 – names of ours


def _search(
    connection: apsw.Connection, query: Query, dense: Dense | None, model: str | None
) -> list[tuple[str, float, RankingScores | None]]:
    """Payloads and scores of the best episodes, best first; those in each ranking if the query asks for them."""
    words = {*_stems(query.text, plausible(query.text), _digest(query.user_id, query.tenant_id))}
    allowed, depth = _allowed(query), max(DEPTH, query.k)
    most = ALL if query.explain else depth
    rankings = {name: _by_words(connection, name, words, allowed, most) for name in BM25 if words}
    if dense:
        rankings[DENSE] = _by_vector(connection, model, dense, allowed)
    best = dict(fused({name: list(ranking)[:depth] for name, ranking in rankings.items()})[: query.k])
    # the owner once more: whatever the rankings have, no other user's episode gets out
    select = f"SELECT id, payload FROM points WHERE id IN (SELECT value FROM json_each(:ids)) AND {allowed.condition}"  # noqa: S608 – of ours
    kept = dict(rows(connection, select, {**allowed.values, "ids": orjson.dumps(list(best)).decode()}))
    return [
        (kept[row], score, _scores(rankings, row) if query.explain else None)
        for row, score in best.items()
        if row in kept
    ]


def _scores(rankings: Mapping[str, Ranking], row: int) -> RankingScores:
    return RankingScores(**{name: ranking.get(row) for name, ranking in rankings.items()})


def _by_words(connection: apsw.Connection, column: str, words: Iterable[str], allowed: Allowed, most: int) -> Ranking:
    """Score the episodes that have one of the words in the column; of equal ones, the one that was put first leads."""
    match = f"{column} : ({' OR '.join(map(_quoted, words))})"
    # with the plus the set is made once; without it SQLite may run the match anew for each of its members
    only = "" if allowed.is_every else f"AND +rowid IN (SELECT id FROM points WHERE {allowed.condition})"  # noqa: S608 – of ours
    select = f"""SELECT rowid, -{BM25[column]} AS score FROM words
        WHERE words MATCH :match {only} ORDER BY score DESC, rowid LIMIT :most"""  # noqa: S608 – of ours
    return dict(rows(connection, select, {**allowed.values, "match": match, "most": most}))


def _by_vector(connection: apsw.Connection, model: str | None, dense: Dense, allowed: Allowed) -> Ranking:
    """Score all of the allowed episodes by cosine."""
    select = f"""SELECT id, vector FROM points JOIN vectors USING (id)
        WHERE {allowed.condition} AND model IS :model ORDER BY id"""  # noqa: S608 – of ours
    found = rows(connection, select, {**allowed.values, "model": model})
    if not found:
        return {}
    _require_dimension(len(found[0][1]), dense)
    vectors = np.frombuffer(b"".join(vector for _, vector in found), COORDINATE).reshape(len(found), len(dense))
    cosines = vectors @ _unit(dense)
    return {found[at][0]: float(cosines[at]) for at in np.argsort(-cosines, kind="stable")}


def _allowed(query: Query) -> Allowed:
    wanted = {
        "user_id IS :user_id": query.user_id,
        "tenant_id IS :tenant_id": query.tenant_id,
        "agent_id = :agent_id": query.agent_id,
        "conversation_id = :conversation_id": query.conversation_id,
        "started_at >= :started_after": query.started_after and _microseconds(query.started_after),
        "ended_at < :ended_before": query.ended_before and _microseconds(query.ended_before),
    }
    given = {part: value for part, value in wanted.items() if value is not None or part.startswith("tenant_id")}
    return Allowed(" AND ".join(given), {part.rpartition(":")[2]: v for part, v in given.items()}, len(given) == OWNER)


def _require_dimension(kept_bytes: int, dense: Dense) -> None:
    """Raises: ConfigurationError."""
    kept = kept_bytes // COORDINATE.itemsize
    if kept != len(dense):
        problem = f"the index has vectors of dimension {kept}, the embedder's have {len(dense)}"
        raise ConfigurationError(setting="AFTERWORD_EMBEDDER__MODEL", problem=problem)


def _unit(dense: Dense) -> NDArray[np.float32]:
    vector = np.asarray(dense, COORDINATE)
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length else vector


def _stems(text: str, languages: Iterable[str], owner: str) -> list[str]:
    return [owner + stem for language in languages for stem in stem_words(text, language)]


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _digest(user_id: str, tenant_id: str | None) -> str:
    """The digest of an owner; no tenant is another than one with an empty name."""
    return hashlib.blake2b(orjson.dumps([tenant_id, user_id]), digest_size=OWNER_BYTES).hexdigest()


def _microseconds(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)
