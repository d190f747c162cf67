"""An HTTP server on 127.0.0.1 that receives webhooks, and answers as a test wants."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web
from standardwebhooks import Webhook

from tests.endpoints import serving

SECRET = "whsec_" + "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"


@dataclass(frozen=True)
class Received:
    """A request whose signature was verified."""

    id: str
    event: dict[str, Any]
    status: int

    @property
    def conversation(self) -> str:
        return str(self.event["data"]["conversation_id"])


Respond = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


async def accept(_: web.Request, __: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=204)


class Receiver:
    """Received requests, in order. `respond` makes the answers, and may be changed at any time."""

    def __init__(self, respond: Respond = accept, secret: str = SECRET) -> None:
        self.respond = respond
        self.received: list[Received] = []
        self.at_once = 0
        self.most_at_once = 0
        self.url = ""
        self._secret = secret

    @property
    def taken(self) -> list[Received]:
        return [one for one in self.received if 200 <= one.status < 300]

    def ids(self, conversation: str | None = None) -> list[str]:
        """Return the ids of the accepted events, without consecutive repeats."""
        found = [one.id for one in self.taken if conversation in (None, one.conversation)]
        return list(dict.fromkeys(found))

    async def hook(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        event = Webhook(self._secret).verify(body, dict(request.headers))
        assert event == orjson.loads(body)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            response = await self.respond(request, event)
        finally:
            self.at_once -= 1
        self.received.append(Received(request.headers["webhook-id"], event, response.status))
        return response


@asynccontextmanager
async def receiving(respond: Respond = accept, secret: str = SECRET) -> AsyncIterator[Receiver]:
    receiver = Receiver(respond, secret)
    async with serving(receiver.hook, "POST", "/hook") as url:
        receiver.url = f"{url}/hook"
        yield receiver
