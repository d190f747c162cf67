"""The search index in the SQLite file: FTS5 finds words with `bm25()`, and NumPy finds vectors by their signs.

FTS5 gets an episode's words once for each user who can find it: as numbers, prefixed with a digest of the user. So a
search reads only its user's words, and a word is as rare as it is among the user's episodes.

The more coordinates of two vectors have the same sign, the higher their cosine tends to be. Signs take an eighth of the
space and time, and find as many answers.
"""

import hashlib
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import apsw
import numpy as np
import orjson
from numpy.typing import NDArray

from afterword.schemas.base import milliseconds, moment_at
from afterword.streams.errors import ConfigurationError
from afterword.streams.stores.episodes import StoredEpisode, parts
from afterword.streams.stores.index import DEPTH, Candidate, Dense, Query, SearchText
from afterword.streams.stores.packing import COORDINATE, LAST_END, packed_texts, packed_words
from afterword.streams.stores.sqlite import SqliteFile, insert, rows, stored
from afterword.streams.tasks import apart
from afterword_text.language import STEMMER, hashed, query_words

LEAST_WORDS, MATCHED = 3, 1000
"""A search finds episodes by this many of the query's rarest words, or by more if these are in fewer than MATCHED
episodes together: `bm25()` takes 0.6 µs for each."""
SCANNED = 1000
"""Maximum number of episodes whose vectors are compared with a query's; they are the newest ones, but words find older
ones too."""
USER_BYTES = 6
"""Length of a user's digest; if two users have the same one, a search still compares the users themselves."""
PAGE_SIZE = 1000
POINTS = "finders JOIN points ON points.id = point"


class Point(NamedTuple):
    """An episode as it is indexed."""

    row: Mapping[str, Any]
    finders: Sequence[Mapping[str, Any]]
    words: Sequence[int]
    vectors: bytes
    size: int
    """Dimension of the vectors."""


class Allowed(NamedTuple):
    """The condition on points that a query may find, and its values."""

    condition: str
    values: Mapping[str, Any]
    is_every: bool
    """True if all of the user's episodes are allowed."""


class SqliteIndex:
    """An EpisodeIndex. `model` names the embedder that makes all vectors, of messages and of queries.

    Episodes of another model or another `stemmer` count as not indexed until `afterword index rebuild`.
    """

    def __init__(self, file: SqliteFile, model: str | None = None, stemmer: str = STEMMER) -> None:
        self._file = file
        self._model = model
        self._stemmer = stemmer

    async def prepare(self) -> None:
        await self._file.ping()

    async def put(
        self, episode: StoredEpisode, texts: Mapping[str, SearchText], vectors: Mapping[str, Dense] | None = None
    ) -> None:
        size = sum(len(text.text) for text in texts.values())
        point = await apart(size, _point, episode, texts, vectors or {}, self._model, self._stemmer)
        if await self._file.write(lambda connection: _put(connection, point)):
            await self._file.empty_log()

    async def hand_over(self, episode: StoredEpisode) -> bool:
        return await self._file.write(partial(_hand_over, episode=episode))

    async def remove(self, episode_id: str, revision: int) -> None:
        def write(connection: apsw.Connection) -> None:
            if _clear(connection, episode_id, revision, is_removal=True) is not None:
                insert(connection, "points", {"episode_id": episode_id, "revision": revision})

        await self._file.write(write)
        await self._file.empty_log()

    async def push_out_removed(self) -> None:
        await self._file.empty_log()

    async def search(self, query: Query, dense: Dense | None = None) -> list[Candidate]:
        return await self._file.read(lambda connection: _search(connection, query, dense, self._model))

    async def revisions(self, episode_ids: Sequence[str]) -> dict[str, int]:
        select = """SELECT episode_id, revision FROM points
            WHERE episode_id IN (SELECT value FROM json_each(?)) AND message_ids IS NOT NULL
            AND model IS ? AND stemmer = ?"""
        values = orjson.dumps(episode_ids).decode(), self._model, self._stemmer
        return dict(await self._file.read(lambda connection: rows(connection, select, values)))

    async def pages(self) -> AsyncIterator[dict[str, int]]:
        select = f"""SELECT episode_id, revision FROM points
            WHERE episode_id > ? AND message_ids IS NOT NULL ORDER BY episode_id LIMIT {PAGE_SIZE}"""
        page: dict[str, int] = {"": 0}
        while page := dict(await self._file.read(partial(rows, select=select, values=(max(page),)))):
            yield page

    async def forget(self, episode_ids: Sequence[str]) -> None:
        def write(connection: apsw.Connection) -> None:
            for episode_id in episode_ids:
                _clear(connection, episode_id, sys.maxsize, is_removal=True)

        await self._file.write(write)
        await self._file.empty_log()

    async def close(self) -> None:
        await self._file.close()


def _point(
    episode: StoredEpisode,
    texts: Mapping[str, SearchText],
    vectors: Mapping[str, Dense],
    model: str | None,
    stemmer: str,
) -> Point:
    summary = episode.summary
    words, packed = packed_texts(summary, texts, vectors)
    row = {
        **summary.model_dump(include={"episode_id", "revision", "agent_id", "conversation_id"}),
        "ended_at": milliseconds(summary.ended_at),
        "model": model,
        "stemmer": stemmer,
        "message_ids": orjson.dumps(list(texts)).decode(),
        "packed": words,
    }
    size = len(next(iter(vectors.values()))) if vectors else 0
    if packed:
        row["signs"] = _signs(np.frombuffer(packed, COORDINATE).reshape(-1, size)).tobytes()
    return Point(row, _finders(episode), _numbers(words), packed, size)


def _finders(episode: StoredEpisode) -> list[Mapping[str, Any]]:
    summary = episode.summary
    finder = {"tenant_id": summary.tenant_id, "started_at": milliseconds(summary.started_at)}
    return [{**finder, "user_id": user} for user in episode.writers]


def _numbers(words: bytes) -> list[int]:
    numbers = packed_words(words)
    found: list[int] = numbers[numbers > LAST_END].tolist()
    return found


def _put(connection: apsw.Connection, point: Point) -> bool:
    """Write an episode unless a later revision is stored; return whether it replaced one."""
    is_replaced = _clear(connection, point.row["episode_id"], point.row["revision"], is_removal=False)
    if is_replaced is None:
        return False
    row = insert(connection, "points", point.row)
    _let_find(connection, row, point.words, point.finders)
    if point.vectors:
        model = point.row["model"]
        _require_size(connection, model, point.size)
        insert(connection, "vectors", {"id": row, "model": model, "size": point.size, "packed": point.vectors})
    return is_replaced


def _let_find(
    connection: apsw.Connection, row: int, words: Sequence[int], finders: Sequence[Mapping[str, Any]]
) -> None:
    for finder in finders:
        text = " ".join(_tokens(words, _digest(finder["user_id"], finder["tenant_id"])))
        finder_row = insert(connection, "finders", {"point": row, **finder})
        connection.execute("INSERT INTO words (rowid, text) VALUES (?, ?)", (finder_row, text))


def _hand_over(connection: apsw.Connection, episode: StoredEpisode) -> bool:
    summary = episode.summary
    select = "SELECT id, revision, packed FROM points WHERE episode_id = ? AND message_ids IS NOT NULL"
    for row, revision, packed in rows(connection, select, (summary.episode_id,)):
        if revision <= summary.revision:
            _let_nobody_find(connection, row)
            connection.execute("UPDATE points SET revision = ? WHERE id = ?", (summary.revision, row))
            _let_find(connection, row, _numbers(packed), _finders(episode))
        return True
    return False


def _let_nobody_find(connection: apsw.Connection, row: int) -> None:
    connection.execute("DELETE FROM words WHERE rowid IN (SELECT id FROM finders WHERE point = ?)", (row,))
    connection.execute("DELETE FROM finders WHERE point = ?", (row,))


def _clear(connection: apsw.Connection, episode_id: str, revision: int, *, is_removal: bool) -> bool | None:
    """Make room for a revision; return whether another one was deleted, or None if a later one stays."""
    select = "SELECT id, (revision, message_ids IS NULL) > (?, ?) FROM points WHERE episode_id = ?"
    for row, is_later in rows(connection, select, (revision, is_removal, episode_id)):
        if is_later:
            return None
        _let_nobody_find(connection, row)
        connection.execute("DELETE FROM vectors WHERE id = ?", (row,))
        connection.execute("DELETE FROM points WHERE id = ?", (row,))
        return True
    return False


def _search(connection: apsw.Connection, query: Query, dense: Dense | None, model: str | None) -> list[Candidate]:
    allowed = _allowed(query)
    ids = dict.fromkeys((_by_time if query.order else _by_words)(connection, query, allowed))
    if dense:
        ids |= dict.fromkeys(_by_vector(connection, query, model, dense, allowed))
    # the user is compared again: whatever was found, no other user's episode is returned
    ranked = "x'', x''" if query.order else "points.packed, coalesce(vectors.packed, x'')"
    select = f"""SELECT episode_id, conversation_id, message_ids, started_at, ended_at, {ranked}
        FROM json_each(:ids) CROSS JOIN {POINTS} LEFT JOIN vectors ON vectors.id = point AND vectors.model IS :model
        WHERE finders.id = json_each.value AND {allowed.condition}"""
    values = {**allowed.values, "model": model, "ids": orjson.dumps(list(ids)).decode()}
    return [_candidate(*point) for point in rows(connection, select, values)]


def _candidate(
    episode_id: str, conversation_id: str, message_ids: str, started: int, ended: int, words: bytes, vectors: bytes
) -> Candidate:
    times = moment_at(started), moment_at(ended)
    return Candidate(episode_id, conversation_id, orjson.loads(message_ids), *times, words, vectors)


def _by_words(connection: apsw.Connection, query: Query, allowed: Allowed) -> list[int]:
    """Find the best episodes that have a word of the query; equally good ones come in the order of their writing."""
    asked = hashed(form for word in query_words(query.text) for form in word.forms)
    words = list(dict.fromkeys(_tokens(asked, _digest(query.user_id, query.tenant_id))))
    if allowed.is_every:
        words = _rarest(connection, words)
    if not words:
        return []
    # The unary plus keeps SQLite from running the whole match once for each of these rows, which takes seconds.
    only = "" if allowed.is_every else f"AND +rowid IN (SELECT finders.id FROM {POINTS} WHERE {allowed.condition})"
    select = f"SELECT rowid FROM words WHERE words MATCH :match {only} ORDER BY bm25(words), rowid LIMIT :most"
    values = {**allowed.values, "match": " OR ".join(words), "most": max(DEPTH, query.k)}
    return [row for (row,) in rows(connection, select, values)]


def _by_time(connection: apsw.Connection, query: Query, allowed: Allowed) -> list[int]:
    direction = "DESC" if query.order == "newest" else "ASC"
    select = f"SELECT finders.id FROM {POINTS} WHERE {allowed.condition} ORDER BY started_at {direction} LIMIT :most"
    return [row for (row,) in rows(connection, select, {**allowed.values, "most": query.k})]


def _rarest(connection: apsw.Connection, words: Iterable[str]) -> list[str]:
    """Return the rarest words that any episode has. Words in MATCHED episodes or more count as equally rare."""
    select = f"SELECT count(*) FROM (SELECT 1 FROM words WHERE words MATCH ? LIMIT {MATCHED})"
    counts = {word: connection.execute(select, (word,)).get for word in words}
    rarest = sorted(filter(counts.get, counts), key=lambda word: counts[word])
    before = accumulate((counts[word] for word in rarest), initial=0)
    return [
        word
        for at, (word, matched) in enumerate(zip(rarest, before, strict=False))
        if at < LEAST_WORDS or matched < MATCHED
    ]


def _by_vector(
    connection: apsw.Connection, query: Query, model: str | None, dense: Dense, allowed: Allowed
) -> list[int]:
    """Among the newest allowed episodes, find those with the most similar signs of a message."""
    select = f"""SELECT finders.id, signs FROM {POINTS}
        WHERE {allowed.condition} AND model IS :model AND signs IS NOT NULL ORDER BY started_at DESC LIMIT :most"""
    scanned = rows(connection, select, {**allowed.values, "model": model, "most": SCANNED})
    if not scanned:
        return []
    _require_size(connection, model, len(dense))
    ids, packed = zip(*scanned, strict=True)
    asked = _signs(np.asarray(dense))
    signs = np.frombuffer(b"".join(packed), np.uint8).reshape(-1, len(asked))
    messages = np.fromiter(map(len, packed), np.intp) // len(asked)
    different = np.bitwise_count(signs ^ asked).sum(axis=1)
    least = np.minimum.reduceat(different, np.cumsum(messages) - messages)
    return [ids[at] for at in np.argsort(least, kind="stable")[: max(DEPTH, query.k)].tolist()]


def _allowed(query: Query) -> Allowed:
    filters = list(parts(query.filters()))
    asked = [f"{field} {operator or '='} :{field}_{n}" for n, (field, operator, _) in enumerate(filters)]
    condition = " AND ".join(["user_id IS :user_id", "tenant_id IS :tenant_id", *asked])
    values = {f"{field}_{n}": stored(value) for n, (field, _, value) in enumerate(filters)}
    return Allowed(condition, {"user_id": query.user_id, "tenant_id": query.tenant_id} | values, not filters)


def _require_size(connection: apsw.Connection, model: str | None, size: int) -> None:
    for (kept,) in rows(connection, "SELECT size FROM vectors WHERE model IS ? LIMIT 1", (model,)):
        if kept != size:
            problem = f"the index has vectors of dimension {kept}, the embedder's have {size}"
            raise ConfigurationError(setting="AFTERWORD_EMBEDDER__MODEL", problem=problem)


def _signs(vectors: NDArray[Any]) -> NDArray[np.uint8]:
    return np.packbits(vectors > 0, axis=-1)


def _tokens(numbers: Iterable[int], user: str) -> list[str]:
    return [f"{user}{number:x}" for number in numbers]


def _digest(user_id: str, tenant_id: str | None) -> str:
    """Return the digest of a tenant's user. No tenant and a tenant with an empty name give different digests."""
    return hashlib.blake2b(orjson.dumps([tenant_id, user_id]), digest_size=USER_BYTES).hexdigest()
