"""Where snapshots are kept: a folder, and a bucket of a small server that speaks S3."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path

import pytest
import pytest_asyncio

from afterword.streams.runtime.snapshot_stores import (
    READ_BYTES,
    UPLOAD_BYTES,
    SnapshotStore,
    open_snapshot_store,
)
from tests.bucket import BUCKET, Bucket, bucket_server
from tests.doubles.snapshots import MemorySnapshots

KEY = "app/messages/3"
SIZES = [0, 1, READ_BYTES, READ_BYTES + 1, UPLOAD_BYTES + READ_BYTES + 5]


@pytest_asyncio.fixture
async def bucket(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bucket]:
    async with bucket_server() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        yield found


@pytest.fixture(params=["folder", "bucket", "memory"])
def store(request: pytest.FixtureRequest, bucket: Bucket, tmp_path: Path) -> SnapshotStore:
    makers: dict[str, Callable[[], SnapshotStore]] = {
        "folder": lambda: open_snapshot_store(str(tmp_path / "deep" / "er")),
        "bucket": lambda: open_snapshot_store(f"s3://{BUCKET}/deep/er"),
        "memory": MemorySnapshots,
    }
    return makers[request.param]()


async def pieces_of(parts: Iterable[bytes], error: Exception | None = None) -> AsyncGenerator[bytes, None]:
    for part in parts:
        yield part
    if error is not None:
        raise error


async def read(store: SnapshotStore, key: str = KEY) -> bytes:
    async with aclosing(store.read(key)) as pieces:
        return b"".join([piece async for piece in pieces])


def cut(whole: bytes) -> Iterator[bytes]:
    return (whole[at : at + 100_000] for at in range(0, len(whole), 100_000))


@pytest.mark.parametrize("size", SIZES[1:])
async def test_what_was_written_last_is_read(store: SnapshotStore, size: int) -> None:
    for fill in (os.urandom(100), os.urandom(size)):
        await store.write(KEY, pieces_of(cut(fill)))
    assert await read(store) == fill


async def test_what_was_never_written_is_missing(store: SnapshotStore) -> None:
    with pytest.raises(FileNotFoundError):
        await read(store)


@pytest.mark.parametrize("size", SIZES)
async def test_a_snapshot_that_breaks_off_leaves_the_one_before(store: SnapshotStore, size: int) -> None:
    await store.write(KEY, pieces_of([b"before"]))
    with pytest.raises(ValueError, match="broke off"):
        await store.write(KEY, pieces_of(cut(os.urandom(size)), ValueError("broke off")))
    assert await read(store) == b"before"


async def test_a_folder_has_files_and_folders_for_their_owner_alone_and_nothing_else_stays(tmp_path: Path) -> None:
    store, before = open_snapshot_store(f"file://{tmp_path}/sn%20aps"), os.umask(0)
    try:
        await store.write(KEY, pieces_of([b"1"]))
        with pytest.raises(ValueError, match="broke off"):
            await store.write(KEY, pieces_of([b"1"], ValueError("broke off")))
    finally:
        os.umask(before)
    made = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in below(tmp_path)}
    folders = dict.fromkeys(("sn aps", "sn aps/app", "sn aps/app/messages"), 0o700)
    assert made == {**folders, f"sn aps/{KEY}": 0o600}


async def test_two_that_write_at_once_into_a_folder_leave_one_of_both_snapshots(tmp_path: Path) -> None:
    """A former owner is still at it when the next one begins: one of them may fail."""
    store = open_snapshot_store(str(tmp_path))
    both = [store.write(KEY, slowly([b"%d" % n] * 20)) for n in range(2)]
    done = await asyncio.gather(*both, return_exceptions=True)
    assert None in done
    assert await read(store) in (b"0" * 20, b"1" * 20)
    await store.write(KEY, pieces_of([b"2"]))
    assert [path.name for path in below(tmp_path) if path.is_file()] == ["3"]


def below(folder: Path) -> list[Path]:
    return list(folder.rglob("*"))


async def slowly(parts: Iterable[bytes]) -> AsyncGenerator[bytes, None]:
    for part in parts:
        await asyncio.sleep(0)
        yield part


async def test_a_bucket_gets_small_snapshots_whole_and_large_ones_in_parts(bucket: Bucket) -> None:
    store = open_snapshot_store(f"s3://{BUCKET}")
    await store.write("small", pieces_of([b"1"]))
    assert bucket.asked == ["PUT"]
    await store.write("large", pieces_of(cut(bytes(2 * UPLOAD_BYTES))))
    assert bucket.asked[1:] == ["POST uploads", *["PUT partNumber&uploadId"] * 2, "POST uploadId"]
    assert bucket.uploads == {}


async def test_a_bucket_that_is_overwritten_while_it_is_read_gives_no_mixture(bucket: Bucket) -> None:
    store = open_snapshot_store(f"s3://{BUCKET}")
    await store.write(KEY, pieces_of([bytes(2 * READ_BYTES)]))
    found = b""
    with suppress(*store.errors):
        async with aclosing(store.read(KEY)) as pieces:
            async for piece in pieces:
                found += piece
                await store.write(KEY, pieces_of([b"\1" * 2 * READ_BYTES]))
    assert found == bytes(READ_BYTES)


@pytest.mark.parametrize(
    "url", ["ftp://host/folder", "http://host/bucket", "file://host/folder", "gs://bucket", "s3://"]
)
def test_another_kind_of_place_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"is no folder|not one that obstore can read"):
        open_snapshot_store(url)
