"""The index in a directory: several processes, and that what is gone is gone."""

import asyncio
import math
import random
import shutil
import stat
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.stores import sqlite_index
from afterword.streams.stores.index import DEPTH, SUMMARY, TEXT, Query, fused, summary_text
from afterword.streams.stores.sparse import document_vector, query_vector
from afterword.streams.stores.sqlite_index import READING_CACHE_KIB, WRITING_CACHE_KIB, SqliteIndex
from tests.doubles.index import MemoryIndex
from tests.samples import a_summary

RAW_TEXT = "I need a taxi to the museum in Cambridge."
WORDS = ("taxi", "museum", "hotel", "flight")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "index"


@pytest_asyncio.fixture
async def index(path: Path) -> AsyncIterator[SqliteIndex]:
    opened = SqliteIndex(path, "episodes")
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(path: Path) -> AsyncIterator[SqliteIndex]:
    """The same directory, as another process has it open."""
    opened = SqliteIndex(path, "episodes")
    yield opened
    await opened.close()


async def found(index: SqliteIndex | MemoryIndex, text: str, **fields: Any) -> list[str]:
    query = Query(**{"text": text, "user_id": "u1", "tenant_id": "t1", "k": 100, **fields})
    return [hit.episode_id for hit in await index.search(query)]


def cache_kib(index: SqliteIndex) -> int:
    """Most memory that pages of the file may take."""
    connection = index._file._connection
    assert connection is not None
    [(found,)] = connection.execute("PRAGMA cache_size")
    return -int(found)


async def test_the_pages_that_a_process_keeps_are_few_before_it_searches(index: SqliteIndex) -> None:
    await index.put(a_summary(), RAW_TEXT)
    assert cache_kib(index) == WRITING_CACHE_KIB
    assert await found(index, "taxi")
    assert cache_kib(index) == READING_CACHE_KIB > WRITING_CACHE_KIB


async def test_a_write_to_a_file_that_somebody_removes_meanwhile_is_not_taken_for_done(
    index: SqliteIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([(1, 1), None])  # there, and gone at the second look
    monkeypatch.setattr(sqlite_index, "_identity", lambda _: next(looks))
    with pytest.raises(StoreUnavailable, match="removed"):
        await index.put(a_summary(), RAW_TEXT)


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def open_to_others(directory: Path) -> list[Path]:
    return [file for file in (directory, *directory.iterdir()) if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


async def test_reading_makes_no_directory(index: SqliteIndex, path: Path) -> None:
    await index.ping()
    assert await index.revisions(["c1:1"]) == {}
    assert await found(index, "taxi") == []
    assert names(path.parent.parent) == []


async def test_many_that_write_at_once_are_all_written(index: SqliteIndex, other: SqliteIndex) -> None:
    episodes = [a_summary(ordinal) for ordinal in range(1, 201)]
    await asyncio.gather(*[index.put(episode, RAW_TEXT) for episode in episodes])
    gone = [episode.episode_id for episode in episodes[::2]]
    await asyncio.gather(*[index.remove(name, 2) for name in gone])
    assert await found(other, "taxi") == await found(index, "taxi")
    assert {*await found(other, "taxi")} == {episode.episode_id for episode in episodes[1::2]}
    assert await other.revisions(gone) == {}


async def test_a_write_that_fails_does_so_alone(index: SqliteIndex) -> None:
    most = 2**63  # SQLite has no larger integer
    steps = [index.remove("c1:1", most) if n == 50 else index.put(a_summary(n), RAW_TEXT) for n in range(1, 101)]
    await index.put(a_summary(101), RAW_TEXT)  # there is a file to remove from
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes if outcome] == [OverflowError]
    assert len(await found(index, "taxi")) == 100


async def test_a_write_that_nobody_waits_for_any_more_holds_up_no_other(index: SqliteIndex) -> None:
    tasks = [asyncio.ensure_future(index.put(a_summary(n), RAW_TEXT)) for n in range(1, 61)]
    await tasks[0]
    for task in tasks[1::2]:
        task.cancel()
    await asyncio.wait_for(asyncio.gather(*tasks[2::2]), 60)
    assert {a_summary(n).episode_id for n in range(1, 61, 2)} <= {*await found(index, "taxi")}


async def test_what_one_writes_another_finds_at_once(index: SqliteIndex, other: SqliteIndex) -> None:
    assert await found(other, "taxi") == []
    await index.put(a_summary(1), RAW_TEXT)
    assert await found(other, "taxi") == ["c1:1"]
    await index.remove("c1:1", 2)
    assert await found(other, "taxi") == []


async def test_two_may_write(index: SqliteIndex, other: SqliteIndex) -> None:
    await asyncio.gather(*((index, other)[n % 2].put(a_summary(n), RAW_TEXT) for n in range(1, 41)))
    assert sorted(await found(index, "taxi")) == sorted(f"c1:{n}" for n in range(1, 41))


async def test_searches_are_answered_while_another_writes(index: SqliteIndex, other: SqliteIndex) -> None:
    await index.put(a_summary(1), RAW_TEXT)
    writing = asyncio.create_task(write_many(index, 50))
    answers = 0
    while not writing.done():
        assert "c1:1" in await found(other, "taxi")
        answers += 1
    await writing
    assert answers > 1


async def write_many(index: SqliteIndex, count: int) -> None:
    for ordinal in range(2, count):
        await index.put(a_summary(ordinal), RAW_TEXT)


async def test_a_long_list_of_a_word_is_whole(index: SqliteIndex) -> None:
    for ordinal in range(1, 601):
        await index.put(a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "taxi")
    for ordinal in (1, 256, 257, 600):
        await index.remove(f"c1:{ordinal}", 2)
    rare = a_summary(999, title="T", short_summary="S", long_summary="L")
    await index.put(rare, "taxi museum")
    assert (await found(index, "taxi museum"))[0] == "c1:999"
    assert len(await found(index, "taxi")) == 100
    assert await found(index, "taxi", k=3) == ["c1:2", "c1:3", "c1:4"]
    assert await found(index, "taxi", conversation_id="c2") == []


async def test_a_later_revision_takes_the_place_of_the_earlier_one(index: SqliteIndex) -> None:
    await index.put(a_summary(1), "a museum")
    await index.put(a_summary(1, revision=2), "a hotel")
    await index.put(a_summary(1, revision=1), "a museum")
    assert await found(index, "museum") == []
    assert await found(index, "hotel") == ["c1:1"]


async def test_the_files_are_the_user_s_alone(index: SqliteIndex, path: Path) -> None:
    await index.put(a_summary(1), RAW_TEXT)
    assert {"episodes.sqlite", "episodes.sqlite-wal"} <= set(names(path))
    assert open_to_others(path) == []


async def test_what_is_removed_or_replaced_is_in_no_byte_of_a_file(
    index: SqliteIndex, other: SqliteIndex, path: Path
) -> None:
    """While another has the directory open, and without anybody who compacts."""
    chance = random.Random(1)
    for ordinal in range(1, 301):
        length = chance.randrange(1, 400)
        summary = a_summary(ordinal, user_id=f"needle-{ordinal % 7}", short_summary=f"needle {ordinal} " * length)
        await index.put(summary, f"{RAW_TEXT} {ordinal}")
        await found(other, "taxi")
    assert holding(path, b"needle")
    for ordinal in chance.sample(range(1, 301), 300):
        if ordinal % 2:
            await index.remove(f"c1:{ordinal}", 2)
        else:
            await index.put(a_summary(ordinal, revision=2), RAW_TEXT)
    assert holding(path, b"needle") == []
    assert len(await found(other, "taxi")) == 100


def holding(directory: Path, needle: bytes) -> list[str]:
    return [file.name for file in directory.iterdir() if needle in file.read_bytes()]


async def test_a_directory_that_is_deleted_is_made_anew_for_all(
    index: SqliteIndex, other: SqliteIndex, path: Path
) -> None:
    await index.put(a_summary(1), RAW_TEXT)
    assert await found(other, "taxi") == ["c1:1"]
    shutil.rmtree(path)
    assert await found(other, "taxi") == []
    await index.put(a_summary(2), RAW_TEXT)
    assert await found(other, "taxi") == ["c1:2"]


async def test_a_damaged_file_says_what_to_do(index: SqliteIndex, path: Path) -> None:
    write(path / "episodes.sqlite", b"no database at all" * 1000)
    with pytest.raises(StoreUnavailable, match="afterword index rebuild"):
        await index.put(a_summary(1), RAW_TEXT)


async def test_a_file_in_the_place_of_the_directory_is_unavailable(index: SqliteIndex, path: Path) -> None:
    write(path, b"")
    with pytest.raises(StoreUnavailable, match="index"):
        await index.put(a_summary(1), RAW_TEXT)


async def test_a_model_has_its_own_file_and_one_dimension(path: Path) -> None:
    index = SqliteIndex(path, "episodes", "nomic/embed:v1")
    await index.put(a_summary(1), RAW_TEXT, [0.6, 0.8])
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await index.put(a_summary(2), RAW_TEXT, [1.0, 0.0, 0.0])
    query = Query(text="taxi", user_id="u1", tenant_id="t1")
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await index.search(query, [1.0, 0.0, 0.0])
    assert [hit.episode_id for hit in await index.search(query, [1.0, 0.0])] == ["c1:1"]
    await index.close()
    assert "episodes-nomic-embed-v1.sqlite" in names(path)


STEPS = st.lists(
    st.tuples(
        st.booleans(),
        st.integers(1, 4),
        st.integers(1, 4),
        st.lists(st.sampled_from(WORDS), max_size=3),
        st.sampled_from(["u1", "u2"]),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_it_has_and_finds_what_the_index_in_memory_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, int, int, list[str], str]]
) -> None:
    asyncio.run(compared(tmp_path_factory.mktemp("index"), steps))


async def compared(path: Path, steps: list[tuple[bool, int, int, list[str], str]]) -> None:
    ours, expected = SqliteIndex(path, "episodes"), MemoryIndex()
    await ours.put(a_summary(9), "taxi")  # removals before there is a file leave no mark
    await expected.put(a_summary(9), "taxi")
    removed: dict[int, int] = {}
    for removes, ordinal, revision, words, user in steps:
        if not removes and removed.get(ordinal) == revision:
            continue  # the one in memory lets it come back
        if removes:
            removed[ordinal] = max(revision, removed.get(ordinal, 0))
        for index in (ours, expected):
            if removes:
                await index.remove(f"c1:{ordinal}", revision)
            else:
                summary = a_summary(ordinal, revision=revision, user_id=user, title="T", short_summary=" ".join(words))
                await index.put(summary, " ".join(words))
    ids = [f"c1:{n}" for n in range(1, 10)]
    assert await ours.revisions(ids) == await expected.revisions(ids)
    for word in WORDS:
        for user in ("u1", "u2"):
            assert set(await found(ours, word, user_id=user)) == set(await found(expected, word, user_id=user))
    await ours.close()


SAID = st.lists(st.sampled_from((*WORDS, "taxis", "the", "von", "…")), max_size=8).map(" ".join)
PUT = st.tuples(st.integers(1, 12), st.integers(1, 3), SAID, SAID, st.sampled_from(["u1", "u2"]))
REMOVED = st.tuples(st.integers(1, 12), st.integers(1, 3))


@given(steps=st.lists(PUT | REMOVED, max_size=40), asked=SAID, k=st.integers(1, 8))
def test_a_search_has_the_hits_and_scores_of_the_definition(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], asked: str, k: int
) -> None:
    asyncio.run(searched(tmp_path_factory.mktemp("index"), steps, a_query(asked, k)))


def a_query(text: str, k: int) -> Query:
    return Query(text=text, user_id="u1", tenant_id="t1", k=k, explain=True)


async def searched(path: Path, steps: list[tuple[Any, ...]], query: Query) -> None:
    index, kept, revisions = SqliteIndex(path, "episodes"), dict[str, Indexed](), dict[str, float]()
    await index.put(a_summary(99, user_id="nobody"), "")  # removals before there is a file leave no mark
    for ordinal, revision, *texts in steps:
        name = f"c1:{ordinal}"
        if revision < revisions.get(name, 0):
            continue
        kept.pop(name, None)
        if texts:
            said, told, user = texts
            summary = a_summary(ordinal, revision=revision, user_id=user, title="", short_summary=told, long_summary="")
            await index.put(summary, said)
            kept[name] = Indexed(user, said, summary_text(summary))  # blanks, too, decide what language it is taken for
        else:
            await index.remove(name, revision)
        revisions[name] = revision if texts else revision + 0.5  # it does not come back
    hits = await index.search(query)
    await index.close()
    found = [(hit.episode_id, hit.score, hit.scores and (hit.scores.text, hit.scores.summary)) for hit in hits]
    assert found == by_definition(query, {name: one for name, one in kept.items() if one.user == query.user_id})


class Indexed(NamedTuple):
    user: str
    said: str
    told: str


def by_definition(query: Query, kept: Mapping[str, Indexed]) -> list[tuple[str, float, tuple[float | None, ...]]]:
    """What a search finds. `kept`: the owner's episodes, the one that was put last at the end."""
    scores = [
        bm25(query.text, {name: texts[at] for name, texts in kept.items()})
        for at in (Indexed._fields.index("said"), Indexed._fields.index("told"))
    ]
    best = [sorted(of, key=lambda name, of=of: -of[name])[:DEPTH] for of in scores]
    ranked = fused(dict(zip((TEXT, SUMMARY), best, strict=True)))
    return [(name, score, tuple(of.get(name) for of in scores)) for name, score in ranked[: query.k]]


def bm25(query: str, texts: Mapping[str, str]) -> dict[str, float]:
    """Sums of weights in single precision, of those that have a word."""
    vectors = {name: document_vector(text) for name, text in texts.items()}
    weights = {name: dict(zip(v.indices, v.values, strict=True)) for name, v in vectors.items()}
    sums = dict.fromkeys(texts, 0.0)
    for term in query_vector(query).indices:
        having = sum(term in of for of in weights.values())
        idf = np.float32(math.log(1 + (len(texts) - having + 0.5) / (having + 0.5)))
        for name, of in weights.items():
            sums[name] += float(idf * np.float32(of.get(term, 0.0)))
    return {name: score for name, score in sums.items() if score > 0}
