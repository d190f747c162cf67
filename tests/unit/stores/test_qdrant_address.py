"""The address of the Qdrant server."""

import pytest
from pydantic import SecretStr
from qdrant_client.async_qdrant_remote import AsyncQdrantRemote

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Qdrant
from afterword.streams.stores.qdrant import rest_address

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
def test_qdrant_address_is_where_its_client_looks(url: str | None, key: str | None) -> None:
    settings = Qdrant(url=url, api_key=SecretStr(key) if key else None)
    client = AsyncQdrantRemote(url=url or "http://127.0.0.1:6333", api_key=key, check_compatibility=False)
    assert rest_address(settings).rstrip("/") == client.rest_uri.rstrip("/")


def test_qdrant_address_may_omit_defaults() -> None:
    assert rest_address(Qdrant(url="qdrant:6333")) == rest_address(Qdrant(url="qdrant")) == "http://qdrant:6333"


@pytest.mark.parametrize("url", ["http://", "http://qdrant:no", "http://[::1", "ftp://qdrant"])
def test_invalid_qdrant_address_is_a_wrong_setting(url: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_QDRANT__URL: is not an http address"):
        rest_address(Qdrant(url=url))
