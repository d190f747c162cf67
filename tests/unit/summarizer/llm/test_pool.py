import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from afterword.streams.http import Pool


def never(_: httpx.Request) -> httpx.Response:
    raise AssertionError


@pytest_asyncio.fixture
async def made() -> AsyncIterator[list[httpx.AsyncClient]]:
    clients: list[httpx.AsyncClient] = []
    yield clients
    assert all(client.is_closed for client in clients)


def pool_of(count: int, made: list[httpx.AsyncClient]) -> Pool:
    def make() -> httpx.AsyncClient:
        made.append(httpx.AsyncClient(transport=httpx.MockTransport(never)))
        return made[-1]

    return Pool(count, make)


async def test_each_call_at_a_time_has_a_client_to_itself(made: list[httpx.AsyncClient]) -> None:
    pool = pool_of(2, made)
    async with pool.connection() as first, pool.connection() as second:
        assert first is not second
    await pool.close()


async def test_whoever_comes_after_the_last_free_client_waits_until_one_is_free(made: list[httpx.AsyncClient]) -> None:
    pool, entered = pool_of(1, made), asyncio.Event()

    async def come() -> None:
        async with pool.connection():
            entered.set()

    async with pool.connection():
        late = asyncio.create_task(come())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not entered.is_set()
    await late
    assert entered.is_set()
    await pool.close()


async def test_the_client_that_was_used_last_is_used_next(made: list[httpx.AsyncClient]) -> None:
    pool = pool_of(8, made)
    for _ in range(20):
        async with pool.connection():
            pass
    assert len(made) == 1
    await pool.close()


async def test_a_client_whose_call_fails_or_is_cancelled_is_free_again(made: list[httpx.AsyncClient]) -> None:
    pool = pool_of(1, made)
    with pytest.raises(LookupError):
        async with pool.connection():
            raise LookupError
    async with pool.connection():
        waiting = asyncio.create_task(pool.connection().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(5), pool.connection():
        pass
    await pool.close()


async def test_all_clients_are_closed(made: list[httpx.AsyncClient]) -> None:
    pool = pool_of(3, made)
    async with pool.connection(), pool.connection():
        pass
    await pool.close()
    assert [client.is_closed for client in made] == [True, True]
