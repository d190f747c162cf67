"""A small server that speaks as much of S3 as `obstore` asks for: whole objects, ranges of them, uploads in parts."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

BUCKET = "snapshots"
XML = '<?xml version="1.0" encoding="UTF-8"?>'


@dataclass
class Bucket:
    """Objects by key, complete ones only; `asked` has each request's method and query."""

    objects: dict[str, bytes] = field(default_factory=dict)
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict)
    """Parts of uploads that are not complete, by their id."""
    asked: list[str] = field(default_factory=list)
    url: str = ""
    is_silent: bool = False
    """It takes requests, and does not answer."""
    refuses: bool = False

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.asked.append(f"{request.method} {'&'.join(sorted(request.query))}".strip())
        if self.is_silent:
            await asyncio.sleep(3600)
        if self.refuses:
            text = f"{XML}<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>THE-KEY</AWSAccessKeyId></Error>"
            return web.Response(status=403, text=text, content_type="application/xml")
        return getattr(self, f"_{request.method.lower()}")(request, body)  # type: ignore[no-any-return]

    def _put(self, request: web.Request, body: bytes) -> web.Response:
        if "uploadId" in request.query:
            self.uploads[request.query["uploadId"]][int(request.query["partNumber"])] = body
        else:
            self.objects[request.match_info["key"]] = body
        return web.Response(headers={"ETag": _tag(body)})

    def _post(self, request: web.Request, _: bytes) -> web.Response:
        key = request.match_info["key"]
        if "uploads" in request.query:
            number = f"upload-{len(self.asked)}"
            self.uploads[number] = {}
            return _xml(
                "InitiateMultipartUploadResult",
                f"<Bucket>{BUCKET}</Bucket><Key>{key}</Key><UploadId>{number}</UploadId>",
            )
        parts = self.uploads.pop(request.query["uploadId"])
        self.objects[key] = b"".join(parts[number] for number in sorted(parts))
        return _xml("CompleteMultipartUploadResult", f"<Key>{key}</Key><ETag>{_tag(self.objects[key])}</ETag>")

    def _delete(self, request: web.Request, _: bytes) -> web.Response:
        self.uploads.pop(request.query["uploadId"])
        return web.Response(status=204)

    def _get(self, request: web.Request, _: bytes) -> web.Response:
        found = self.objects.get(request.match_info["key"])
        if found is None:
            return web.Response(status=404, text=f"{XML}<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": _tag(found), "Last-Modified": "Mon, 23 Nov 2026 12:00:00 GMT"}
        if request.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return web.Response(status=412)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("Range", ""))
        if asked is None:
            return web.Response(body=found, headers=headers)
        first, last = int(asked[1]), min(int(asked[2]), len(found) - 1)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(found)}"
        return web.Response(status=206, body=found[first : last + 1], headers=headers)

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which `obstore` finds it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "THE-KEY",
            "AWS_SECRET_ACCESS_KEY": "THE-SECRET",
            "AWS_REGION": "eu-north-1",
        }


def _tag(body: bytes) -> str:
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _xml(name: str, inner: str) -> web.Response:
    return web.Response(text=f"{XML}<{name}>{inner}</{name}>", content_type="application/xml")


@asynccontextmanager
async def bucket_server() -> AsyncIterator[Bucket]:
    """Serve an empty bucket on this machine."""
    bucket = Bucket()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", f"/{BUCKET}/{{key:.+}}", bucket.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        bucket.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield bucket
    finally:
        await runner.cleanup()
