"""Keys admit only their holder, and a wrong key cannot be told from an unknown one."""

from typing import Any

import httpx
import pytest

from afterword.schemas.base import ANYONE
from afterword.serving.requests import CACHED_SECONDS, KeyHolders, Principal, new_key
from afterword.serving.server import configuration
from afterword.streams.settings import Serve, Settings
from tests.doubles.stores import MemoryKeys
from tests.unit.afterword.serving.served import serving

PATH = "/v1/conversations"


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def test_api_key_admits_only_its_holder() -> None:
    keys = MemoryKeys()
    key, record = new_key(("read",), "t1", "u1")
    revoked, gone = new_key(("read",), "t1", "u1")
    await keys.put(record)
    async with serving(KeyHolders(keys), auth="keys", host="0.0.0.0") as served:
        assert (await served.client.get(PATH, headers=bearer(key))).status_code == 200
        wrong = key[:-1] + ("A" if key[-1] != "A" else "B")
        refused = [
            await served.client.get(PATH, headers=bearer(one)) for one in (wrong, revoked, "x", "ü".encode().hex())
        ]
        refused.append(await served.client.get(PATH))
        refused.append(await served.client.get(PATH, headers={"Authorization": "Basic dTpw"}))
        assert {one.status_code for one in refused} == {401}
        assert {one.headers["www-authenticate"] for one in refused} == {"Bearer"}
        assert len({one.content for one in refused}) == 1
    assert gone.digest not in keys.kept
    assert key not in repr(keys.kept)


@pytest.mark.parametrize(("user", "named"), [("u1", "u1"), (None, ANYONE)])
async def test_scope_and_owner_are_those_of_the_key(user: str | None, named: Any) -> None:
    keys = MemoryKeys()
    key, record = new_key(("read",), "t1", user)
    await keys.put(record)
    assert await KeyHolders(keys).principal(key) == Principal(record.key_id, frozenset({"read"}), "t1", named)


async def test_wrong_and_unknown_keys_cost_the_same_lookup() -> None:
    keys = MemoryKeys()
    key, record = new_key(("read",), "t1", None)
    await keys.put(record)
    async with serving(KeyHolders(keys), auth="keys") as served:
        for one in (key[:-1], key + "A", new_key((), None, None)[0]):
            before = keys.looked_up
            await served.client.get(PATH, headers=bearer(one))
            assert keys.looked_up == before + 1


async def test_revoked_key_is_refused_within_seconds() -> None:
    now = 0.0
    keys = MemoryKeys()
    holders = KeyHolders(keys, clock=lambda: now)
    key, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    assert (await holders.principal(key)).key_id == record.key_id
    assert await keys.remove(record.key_id)
    async with serving(holders, auth="keys") as served:
        assert (await served.client.get(PATH, headers=bearer(key))).status_code == 200
        now = CACHED_SECONDS
        assert (await served.client.get(PATH, headers=bearer(key))).status_code == 401


@pytest.mark.usefixtures("within_a_minute")
@pytest.mark.parametrize(("trusted", "statuses"), [("", [401, 401, 429]), ("10.0.0.0/8", [401, 401, 401])])
async def test_guesses_behind_a_trusted_proxy_are_limited_per_client(trusted: str, statuses: list[int]) -> None:
    async with serving(KeyHolders(MemoryKeys()), auth="keys", requests_per_minute=2) as served:
        config = configuration(Settings(serve=Serve(auth="keys", trusted_proxies=trusted)), served.app)
        config.load()
        transport = httpx.ASGITransport(config.loaded_app, client=("10.1.2.3", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            clients = ("203.0.113.1", "203.0.113.1", "203.0.113.2")
            answers = [await client.get(PATH, headers=bearer("guess") | {"x-forwarded-for": one}) for one in clients]
        assert [one.status_code for one in answers] == statuses


@pytest.mark.usefixtures("within_a_minute")
async def test_guesses_are_limited_before_they_cost_a_query() -> None:
    keys = MemoryKeys()
    key, record = new_key(("read",), None, None)
    await keys.put(record)
    async with serving(KeyHolders(keys), auth="keys", requests_per_minute=3) as served:
        asked = {"user_id": "u1"}
        assert (await served.client.get(PATH, headers=bearer(key), params=asked)).status_code == 200
        before = keys.looked_up
        answers = [await served.client.get(PATH, headers=bearer(f"guess{n}")) for n in range(5)]
        assert [one.status_code for one in answers] == [401, 401, 401, 429, 429]
        assert keys.looked_up == before + 3
        assert (await served.client.get(PATH, headers=bearer(key), params=asked)).status_code == 200
