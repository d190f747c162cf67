"""A worker stops when something that watches it has failed."""

import asyncio
from types import SimpleNamespace

from faust_eos.app import crash_with


class Crashing:
    """An app that remembers what crashed it."""

    conf = SimpleNamespace(id="app")

    def __init__(self) -> None:
        self.reasons: list[BaseException] = []

    async def crash(self, reason: BaseException) -> None:
        self.reasons.append(reason)


async def fail() -> None:
    raise LookupError("unforeseen")


async def test_a_watcher_that_fails_crashes_its_app() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    await crash_with(app, (endless, asyncio.create_task(fail())))  # type: ignore[arg-type]  # a task of any result will do
    assert [type(reason) for reason in app.reasons] == [LookupError]
    endless.cancel()


async def test_a_watcher_that_is_cancelled_crashes_nothing() -> None:
    app = Crashing()
    endless = asyncio.create_task(asyncio.Event().wait())
    endless.cancel()
    await crash_with(app, (endless,))  # type: ignore[arg-type]  # a task of any result will do
    assert app.reasons == []
