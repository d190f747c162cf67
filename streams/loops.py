"""The event loop of a client: on another one, its answers would never arrive."""

import asyncio

from afterword.streams.errors import OtherLoop


class OwnLoop:
    """The event loop that a client belongs to: the first one that uses it."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None

    def require(self) -> None:
        """Raises: OtherLoop on any other loop."""
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if running is not self._loop:
            raise OtherLoop(client=self._client)
