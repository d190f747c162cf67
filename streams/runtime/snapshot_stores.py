"""Places for snapshots: a folder, or a bucket that speaks S3. An object appears when all of it is there, or not at all.

Nothing is listed or deleted: each partition has one key, and its next snapshot takes the place of the last.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

from afterword.streams.runtime.database import private_directory

READ_BYTES = 1 << 20
"""Bytes that are read at once; many partitions may be restored together."""
UPLOAD_BYTES = 8 << 20
"""Bytes of a part of an upload: S3 takes 10,000 of them."""
UPLOADS = 2
"""Parts that are under way together."""
OWNER_ONLY = 0o600
"""Mode of the files."""
RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class SnapshotStore(Protocol):
    """One of `errors` costs a snapshot, and nothing else."""

    errors: tuple[type[Exception], ...]
    """Errors that it raises when it cannot be reached, refuses, or has no such object."""

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        """Put an object in the place of the one that was there, once all pieces have come."""

    def read(self, key: str) -> AsyncGenerator[bytes, None]:
        """Yield an object in pieces. Raises: FileNotFoundError if there is none."""
        ...


class FolderStore:
    """Files for their owner alone, whatever the umask."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        path = self._folder / key
        part = path.with_name(f"{path.name}.part")
        file = await asyncio.to_thread(_created, part)
        try:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(_published, file, part, path)
        finally:
            file.close()
            part.unlink(missing_ok=True)

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        file = await asyncio.to_thread((self._folder / key).open, "rb")
        with file:
            while piece := await asyncio.to_thread(file.read, READ_BYTES):
                yield piece


def _created(part: Path) -> BinaryIO:
    """Open a file of our own: a former owner of the partition may still be at work on the one before.

    It may then put ours in place before the end, or remove it: a reader notices, and our next one is whole.
    """
    private_directory(part.parent)
    part.unlink(missing_ok=True)
    return os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, OWNER_ONLY), "wb")


def _published(file: BinaryIO, part: Path, path: Path) -> None:
    file.flush()
    os.fsync(file.fileno())
    part.replace(path)


class BucketStore:
    """Objects of a bucket. Credentials, region and endpoint are those of the variables `AWS_…`."""

    def __init__(self, url: str) -> None:
        """`url`: s3://bucket/prefix. Raises: ModuleNotFoundError without `obstore`, ValueError."""
        import obstore
        from obstore.exceptions import BaseError
        from obstore.store import from_url

        self._obstore = obstore
        self.errors: tuple[type[Exception], ...] = (OSError, BaseError)
        try:
            self._bucket = from_url(url, retry_config=RETRIES)
        except BaseError as error:
            raise ValueError("the address, or a variable AWS_…, is not one that obstore can read") from error

    async def write(self, key: str, pieces: AsyncIterator[bytes]) -> None:
        upload = self._obstore.open_writer_async(self._bucket, key, buffer_size=UPLOAD_BYTES, max_concurrency=UPLOADS)
        async for piece in pieces:
            await upload.write(piece)
        await upload.close()  # only now: without it, the object is never made

    async def read(self, key: str) -> AsyncGenerator[bytes, None]:
        """Read parts of one version: each is a request with a time limit of its own."""
        at, size = 0, 1
        version: dict[str, Any] = {}
        while at < size:
            options: Any = {"range": (at, at + READ_BYTES), **version}
            found = await self._obstore.get_async(self._bucket, key, options=options)
            piece = bytes(await found.bytes_async())
            if not piece:
                return
            yield piece
            at, size = at + len(piece), found.meta["size"]
            version = {"if_match": found.meta["e_tag"]} if found.meta["e_tag"] else {}


def open_snapshot_store(url: str) -> SnapshotStore:
    """Return the store of a folder's path or `file://` address, or of an `s3://` address; it does not connect yet.

    Raises: ModuleNotFoundError without `obstore` for a bucket, ValueError for another kind of address.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3":
        return BucketStore(url)
    if parts.scheme not in ("", "file") or parts.netloc not in ("", "localhost"):
        raise ValueError("is no folder, no file:// and no s3:// address")
    return FolderStore(Path(unquote(parts.path) if parts.scheme else url))
