"""MongoDB, Qdrant, LLM and embedder behind TLS with a private authority."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast
from urllib.parse import quote, urlencode

import pytest
from aiohttp import web
from pydantic import SecretStr

from afterword.streams.errors import ConfigurationError, ProviderUnavailable, StoreUnavailable
from afterword.streams.http import HttpClient
from afterword.streams.settings import EmbedderSettings, Llm, Mongo, Qdrant, Redaction
from afterword.streams.stores import mongo
from afterword.streams.stores.qdrant import check
from afterword.streams.summarizer.embedders import make_embedder
from tests.certificates import Authority
from tests.endpoints import serving
from tests.mongo_server import running_mongo
from tests.rows import with_rows

# on a busy machine a client gives up in the middle of the handshake: asyncio gives the stand-in no hand on what it then
# leaves to the garbage collector
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "stranger")


def server_context(authority: Authority, *, asks_clients: bool = False) -> ssl.SSLContext:
    signed = authority.sign("server")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authority.file)
    context.load_cert_chain(signed.certificate, signed.key)
    context.verify_mode = ssl.CERT_REQUIRED if asks_clients else ssl.CERT_NONE
    return context


@asynccontextmanager
async def tls_before(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """Put TLS in front of a plain server on this machine."""

    async def pass_on(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()

    under_way: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way.add(cast("asyncio.Task[None]", asyncio.current_task()))
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(pass_on(reader, outer), pass_on(inner, writer))
        finally:  # a client that is gone never sends the end of TLS that a polite close waits for
            writer.transport.abort()
            outer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await server.wait_closed()


async def reach(settings: Mongo) -> None:
    database = mongo.connect(settings)
    try:
        await mongo.ping(database)
    finally:
        await mongo.close(database)


async def test_mongodb_is_reached_over_tls_with_a_client_certificate(
    authority: Authority, stranger: Authority, tmp_path: Path
) -> None:
    client = authority.sign("client", password="key's password")
    async with (
        running_mongo(tmp_path) as server,
        tls_before(server.port, server_context(authority, asks_clients=True)) as secure_port,
    ):

        def over_tls(seconds: int, **options: object) -> Mongo:
            given = urlencode({"directConnection": "true", **options}, quote_via=quote)
            uri = f"mongodb://127.0.0.1:{secure_port}/?{given}"
            return Mongo(uri=SecretStr(uri)).answering_within(seconds)

        ours = {"tlsCertificateKeyFile": client.both, "tlsCertificateKeyFilePassword": "key's password"}
        await reach(over_tls(5, tls="true", tlsCAFile=authority.file, **ours))
        for wrong in ({"tlsCAFile": stranger.file, **ours}, {"tlsCAFile": authority.file}, {}):
            with pytest.raises(StoreUnavailable):
                await reach(over_tls(1, **wrong))


@with_rows
def test_unusable_mongodb_credentials_are_named_without_the_password(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        mongo.connect(Mongo.model_validate(options))
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)
    assert "ary@" not in str(caught.value)


async def test_qdrant_is_reached_over_tls_with_its_api_key(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[str | None] = []

    async def answer(request: web.Request) -> web.Response:
        keys.append(request.headers.get("api-key"))
        if request.path == "/":
            return web.json_response({"title": "qdrant", "version": "1.17.1"})
        there = request.path.endswith("/exists")
        return web.json_response({"result": {"exists": False}, "status": "ok", "time": 0}, status=200 if there else 404)

    async with serving(answer, "GET", "/{any:.*}", server_context(authority)) as url:
        settings = Qdrant.model_validate({"url": url, "api_key": "canary"})
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        await check(settings, EmbedderSettings(provider="none"))
        assert keys == ["canary"] * 3
        monkeypatch.setenv("SSL_CERT_FILE", str(stranger.file))
        with pytest.raises(StoreUnavailable) as caught:
            await check(settings, EmbedderSettings(provider="none"))
        assert str(caught.value) == f"qdrant at {url} cannot be reached: its certificate is not trusted"
    assert keys == ["canary"] * 3


async def test_llm_and_embedder_are_reached_over_tls(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"data": [{"embedding": [1.0]}]})

    async with serving(answer, "POST", "/embeddings", server_context(authority)) as url:
        options = {"provider": "openai", "model": "m", "base_url": url}
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        embedder = make_embedder(EmbedderSettings.model_validate(options), Redaction())
        assert embedder is not None
        assert await embedder.passages(["text"]) == [[1.0]]
        await embedder.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(stranger.file))
        http = HttpClient(Llm.model_validate(options), "llm", url)
        with pytest.raises(ProviderUnavailable, match="ConnectError"):
            await http.post("/embeddings", {})
        await http.close()
