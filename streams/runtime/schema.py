"""How an agent wants its topic: whole batches exactly once, or single records at least once."""

from collections.abc import Awaitable, Callable
from typing import Any

from faust import Schema


class Batches(Schema):
    """Exactly once; the value of an event is a list of aiokafka records, raw, or a `Tick`.

    Decoding is the agent's: a value that cannot be decoded must not be acknowledged by Faust behind its back.
    """

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001 – the signature is Faust's
            return app.create_event(None, message.value, None, message)

        return decode


class AtLeastOnce(Schema):
    """Records one by one, many at a time: `stream.noack()`, and `event.ack()` when a record is done. No tables.

    The value of an event is the aiokafka record.
    """

    def compile(self, app: Any, **_: Any) -> Callable[..., Awaitable[Any]]:
        async def decode(message: Any, *, propagate: bool = False) -> Any:  # noqa: ARG001 – the signature is Faust's
            return app.create_event(None, message.value, None, message)

        return decode
