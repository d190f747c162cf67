"""The check for a Qdrant server before its client is imported: same address, and any answer counts."""

import pytest
from aiohttp import web
from pydantic import SecretStr
from qdrant_client.async_qdrant_remote import AsyncQdrantRemote

from afterword.embedded.claims import HOST, free_ports
from afterword.streams.errors import ConfigurationError, StoreUnavailable
from afterword.streams.settings import Qdrant
from afterword.streams.stores.qdrant_server import ping_server, rest_address
from tests.endpoints import serving

URLS = (
    None,
    "http://qdrant",
    "http://qdrant:7000",
    "https://qdrant.example:443/below/it",
    "https://user:secret@qdrant.example",
    "localhost:6333",
    "http://[::1]:6333",
    "http://[::1]",
    "HTTP://Qdrant:06334/",
)


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("key", [None, "canary"])
@pytest.mark.filterwarnings("ignore:Api key is used with an insecure connection")
def test_it_is_where_the_client_looks_for_it(url: str | None, key: str | None) -> None:
    settings = Qdrant(url=url, api_key=SecretStr(key) if key else None)
    client = AsyncQdrantRemote(url=url or "http://127.0.0.1:6333", api_key=key, check_compatibility=False)
    assert rest_address(settings).rstrip("/") == client.rest_uri.rstrip("/")


def test_an_address_may_leave_out_what_is_clear() -> None:
    assert rest_address(Qdrant(url="qdrant:6333")) == rest_address(Qdrant(url="qdrant")) == "http://qdrant:6333"


@pytest.mark.parametrize("url", ["http://", "http://qdrant:no", "http://[::1", "ftp://qdrant"])
def test_what_is_no_address_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_QDRANT__URL: is not an http address"):
        rest_address(Qdrant(url=url))


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_any_answer_is_one(status: int) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    async with serving(answer, "GET", "/") as url:
        await ping_server(Qdrant(url=url))


async def test_nobody_is_away() -> None:
    url = f"http://{HOST}:{free_ports(1)[0]}"
    with pytest.raises(StoreUnavailable) as raised:
        await ping_server(Qdrant(url=url))
    assert str(raised.value) == f"qdrant at {url} cannot be reached: it refused the connection"
