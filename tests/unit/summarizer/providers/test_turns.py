import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from afterword.streams.summarizer.providers.turns import Turns


def never(_: httpx.Request) -> httpx.Response:
    raise AssertionError


@pytest_asyncio.fixture
async def made() -> AsyncIterator[list[httpx.AsyncClient]]:
    clients: list[httpx.AsyncClient] = []
    yield clients
    assert all(client.is_closed for client in clients)


def turns_of(count: int, made: list[httpx.AsyncClient]) -> Turns:
    def make() -> httpx.AsyncClient:
        made.append(httpx.AsyncClient(transport=httpx.MockTransport(never)))
        return made[-1]

    return Turns(count, make)


async def test_each_turn_at_a_time_has_a_client_to_itself(made: list[httpx.AsyncClient]) -> None:
    turns = turns_of(2, made)
    async with turns.turn() as first, turns.turn() as second:
        assert first is not second
    await turns.close()


async def test_whoever_comes_after_the_last_turn_waits_until_one_ends(made: list[httpx.AsyncClient]) -> None:
    turns, entered = turns_of(1, made), asyncio.Event()

    async def come() -> None:
        async with turns.turn():
            entered.set()

    async with turns.turn():
        late = asyncio.create_task(come())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not entered.is_set()
    await late
    assert entered.is_set()
    await turns.close()


async def test_the_client_that_was_used_last_is_used_next(made: list[httpx.AsyncClient]) -> None:
    turns = turns_of(8, made)
    for _ in range(20):
        async with turns.turn():
            pass
    assert len(made) == 1
    await turns.close()


async def test_a_turn_that_fails_or_is_cancelled_is_given_back(made: list[httpx.AsyncClient]) -> None:
    turns = turns_of(1, made)
    with pytest.raises(LookupError):
        async with turns.turn():
            raise LookupError
    async with turns.turn():
        waiting = asyncio.create_task(turns.turn().__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(5), turns.turn():
        pass
    await turns.close()


async def test_all_clients_are_closed(made: list[httpx.AsyncClient]) -> None:
    turns = turns_of(3, made)
    async with turns.turn(), turns.turn():
        pass
    await turns.close()
    assert [client.is_closed for client in made] == [True, True]
