"""The index in the SQLite file: used by several processes, free of deleted data, and what a search finds."""

import asyncio
import random
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.stores.index import DEPTH, Query
from afterword.streams.stores.sqlite import SqliteFile
from afterword.streams.stores.sqlite_index import MATCHED, SqliteIndex
from tests.samples import a_summary
from tests.vectors import put

RAW_TEXT = "I need a taxi to the museum in Cambridge."
WORDS = ("taxi", "museum", "hotel", "flight")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "afterword.sqlite"


@pytest_asyncio.fixture
async def index(path: Path) -> AsyncIterator[SqliteIndex]:
    opened = SqliteIndex(SqliteFile(path))
    yield opened
    await opened.close()


@pytest_asyncio.fixture
async def other(path: Path) -> AsyncIterator[SqliteIndex]:
    """Open the same file as another process would."""
    opened = SqliteIndex(SqliteFile(path))
    yield opened
    await opened.close()


async def found(index: SqliteIndex, text: str, **fields: Any) -> list[str]:
    query = Query(**{"text": text, "user_id": "u1", "tenant_id": "t1", "k": 100, **fields})
    return [one.episode_id for one in await index.search(query)]


def plain(ordinal: int, **fields: Any) -> Any:
    """Return a summary that contains none of the tests' words."""
    return a_summary(ordinal, **{"title": "T", "short_summary": "S", "long_summary": "L", **fields})


async def test_entry_written_by_one_process_is_found_by_another(index: SqliteIndex, other: SqliteIndex) -> None:
    assert await found(other, "taxi") == []
    await put(index, a_summary(1), RAW_TEXT)
    assert await found(other, "taxi") == ["c1:1"]
    await index.remove("c1:1", 2)
    assert await found(other, "taxi") == []


async def test_two_processes_may_open_and_write_at_once(index: SqliteIndex, other: SqliteIndex) -> None:
    await asyncio.gather(*(put((index, other)[n % 2], a_summary(n), RAW_TEXT) for n in range(1, 41)))
    assert sorted(await found(index, "taxi")) == sorted(f"c1:{n}" for n in range(1, 41))


async def test_searches_are_answered_while_another_process_writes(index: SqliteIndex, other: SqliteIndex) -> None:
    await put(index, a_summary(1), RAW_TEXT)
    writing = asyncio.create_task(write_many(index, 50))
    answers = 0
    while not writing.done():
        assert "c1:1" in await found(other, "taxi")
        answers += 1
    await writing
    assert answers > 1


async def write_many(index: SqliteIndex, count: int) -> None:
    for ordinal in range(2, count):
        await put(index, a_summary(ordinal), RAW_TEXT)
        await put(index, a_summary(ordinal, revision=2), RAW_TEXT)  # empties the log


async def test_equal_episodes_keep_their_order(index: SqliteIndex) -> None:
    for ordinal in range(1, 301):
        await put(index, plain(ordinal), "taxi")
    await index.remove("c1:1", 2)
    await put(index, plain(999), "taxi museum")
    assert (await found(index, "taxi museum"))[0] == "c1:999"
    assert (await found(index, "taxi"))[:3] == ["c1:2", "c1:3", "c1:4"]


async def test_common_words_find_together_what_none_finds_alone() -> None:
    index = SqliteIndex(SqliteFile(None))
    for ordinal in range(1, MATCHED + 1):
        await put(index, plain(ordinal), "taxi")
        await put(index, plain(ordinal, conversation_id="c2"), f"museum {WORDS[2 + ordinal % 2]}")
    await put(index, plain(1, conversation_id="c3"), "taxi museum")
    await put(index, plain(2, conversation_id="c3"), "taxi")
    assert (await found(index, "taxi museum"))[0] == "c3:1"
    rarer_elsewhere = await found(index, "hotel flight taxi", conversation_id="c3")
    assert rarer_elsewhere == ["c3:2", "c3:1"]


async def test_quotes_and_operators_of_a_query_are_words(index: SqliteIndex) -> None:
    await put(index, a_summary(1), "hotel")
    for text in ('hotel" OR taxi', "NEAR(hotel taxi)", "summary : hotel", "hotel*", "NOT hotel", "x" * 2000):
        assert await found(index, text) == (["c1:1"] if "hotel" in text else [])


async def test_index_files_belong_to_the_user_alone(index: SqliteIndex, path: Path) -> None:
    await put(index, a_summary(1), RAW_TEXT)
    files = [path.parent, *path.parent.iterdir()]
    assert {"afterword.sqlite", "afterword.sqlite-wal"} <= {file.name for file in files}
    assert [file for file in files if file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)] == []


async def test_removed_or_replaced_texts_are_in_no_byte(index: SqliteIndex, other: SqliteIndex, path: Path) -> None:
    """This holds while another process has the file open, and without compacting it."""
    chance = random.Random(1)
    for ordinal in range(1, 301):
        length = chance.randrange(1, 400)
        summary = a_summary(ordinal, user_id=f"needle-{ordinal % 7}", short_summary=f"needle {ordinal} " * length)
        await put(index, summary, f"{RAW_TEXT} needle{ordinal}", [0.6, 0.8])
        await found(other, "taxi")
    assert holding(path, b"needle")
    for ordinal in chance.sample(range(1, 301), 300):
        if ordinal % 2:
            await index.remove(f"c1:{ordinal}", 2)
        else:
            await put(index, a_summary(ordinal, revision=2), RAW_TEXT)
    assert holding(path, b"needle") == []
    assert len(await found(other, "taxi")) == 100


def holding(path: Path, needle: bytes) -> list[str]:
    return [file.name for file in path.parent.iterdir() if needle in file.read_bytes()]


async def test_endless_reader_delays_the_acknowledgement_of_a_removal(path: Path) -> None:
    index = SqliteIndex(SqliteFile(path, timeout_seconds=0.1))
    await put(index, a_summary(1), RAW_TEXT)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT * FROM points").fetchall()
    with pytest.raises(StoreUnavailable, match="log"):
        await index.remove("c1:1", 2)
    reader.close()
    await index.remove("c1:1", 2)
    await index.close()


async def test_damaged_index_file_is_unavailable(index: SqliteIndex, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"no database at all" * 1000)  # noqa: ASYNC240 – a few bytes
    with pytest.raises(StoreUnavailable, match="damaged"):
        await put(index, a_summary(1), RAW_TEXT)


async def test_file_in_place_of_the_directory_is_unavailable(index: SqliteIndex, path: Path) -> None:
    path.parent.write_bytes(b"")
    with pytest.raises(StoreUnavailable, match="sqlite"):
        await put(index, a_summary(1), RAW_TEXT)


async def test_vectors_share_one_dimension_per_model(path: Path) -> None:
    file = SqliteFile(path)
    index, renewed = SqliteIndex(file, "nomic/embed:v1"), SqliteIndex(file, "v2")
    await put(index, plain(1), RAW_TEXT, [0.6, 0.8])
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await put(index, plain(2), RAW_TEXT, [1.0, 0.0, 0.0])
    query = Query(text="plane", user_id="u1", tenant_id="t1")
    with pytest.raises(ConfigurationError, match="dimension 2"):
        await index.search(query, [1.0, 0.0, 0.0])
    assert [one.episode_id for one in await index.search(query, [1.0, 0.0])] == ["c1:1"]
    assert await renewed.search(query, [1.0, 0.0, 0.0]) == []
    assert await found(renewed, "taxi") == ["c1:1"]
    assert await renewed.revisions(["c1:1"]) == {}  # the episode is indexed again, because of its vector
    await put(renewed, plain(1), RAW_TEXT, [1.0, 0.0, 0.0])
    assert await renewed.revisions(["c1:1"]) == {"c1:1": 1}
    await file.close()


async def test_episodes_with_similar_vectors_become_candidates() -> None:
    chance, index = random.Random(1), SqliteIndex(SqliteFile(None), "v1")
    vectors = [[chance.gauss() for _ in range(64)] for _ in range(3 * DEPTH)]
    for ordinal, vector in enumerate(vectors):
        await put(index, plain(ordinal + 1), RAW_TEXT, vector)
    query = Query(text="plane", user_id="u1", tenant_id="t1")
    for ordinal, vector in enumerate(vectors[::10]):
        similar = [coordinate + chance.gauss() for coordinate in vector]
        found = [one.episode_id for one in await index.search(query, similar)]
        assert len(found) == DEPTH
        assert f"c1:{10 * ordinal + 1}" in found


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
def test_index_has_the_latest_revision_of_existing_episodes(steps: list[tuple[bool, int, int, list[str], str]]) -> None:
    asyncio.run(compared(steps))


async def compared(steps: list[tuple[bool, int, int, list[str], str]]) -> None:
    index = SqliteIndex(SqliteFile(None))
    latest = dict[int, tuple[int, bool]]()
    kept = dict[int, tuple[str, list[str]]]()
    for removes, ordinal, revision, words, user in steps:
        if removes:
            await index.remove(f"c1:{ordinal}", revision)
        else:
            await put(index, plain(ordinal, revision=revision, user_id=user), " ".join(words))
        if (revision, removes) >= latest.get(ordinal, (0, False)):
            latest[ordinal] = revision, removes
            kept.pop(ordinal, None)
            if not removes:
                kept[ordinal] = user, words
    assert await index.revisions([f"c1:{n}" for n in range(1, 10)]) == {f"c1:{n}": latest[n][0] for n in kept}
    for word in WORDS:
        for user in ("u1", "u2"):
            expected = {f"c1:{n}" for n, (of, words) in kept.items() if of == user and word in words}
            assert {*await found(index, word, user_id=user)} == expected


async def test_episodes_of_another_stemmer_are_indexed_again(path: Path, index: SqliteIndex) -> None:
    earlier = SqliteIndex(SqliteFile(path), stemmer="2.2.0 with 30 algorithms")
    await put(earlier, a_summary(1), "the university")
    await put(index, a_summary(2), "the university")
    assert await index.revisions(["c1:1", "c1:2"]) == {"c1:2": 1}
    await put(index, a_summary(1), "the university")
    assert await index.revisions(["c1:1", "c1:2"]) == {"c1:1": 1, "c1:2": 1}
    await earlier.close()
