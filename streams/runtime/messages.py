"""Faust messages that tell success from everything else that Faust calls an acknowledgement."""

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from faust.exceptions import KeyDecodeError, ValueDecodeError
from faust.types.tuples import ConsumerMessage

NOT_DONE = (GeneratorExit, asyncio.CancelledError, KeyDecodeError, ValueDecodeError)
"""While one of these is being handled Faust sets `acked` as well: the agent's generator is being torn down."""


class NotTaken(Exception):
    """Faust skipped the event: flow control was suspended, or the event is of an earlier assignment."""


class BatchMessage(ConsumerMessage):
    """`acked` becomes true when the agent asks for the next event; only then its batch is finished.

    Faust's Cython code sets the attribute itself instead of calling a method, so it is a property here.
    """

    __slots__ = ("_acked", "batch")

    def __init__(self, batch: Any, *args: Any, **kwargs: Any) -> None:
        self.batch = batch
        self._acked = False
        super().__init__(*args, **kwargs)

    @property
    def acked(self) -> bool:
        return self._acked

    @acked.setter
    def acked(self, value: bool) -> None:
        self._acked = value
        if not value:
            return
        error = sys.exc_info()[1]
        if isinstance(error, NOT_DONE):
            self.batch.fail(error)
        elif not self.tracked:
            self.batch.fail(NotTaken())
        else:
            self.batch.finish()


class ConcurrentMessage(ConsumerMessage):
    """One of many in the agent's hands; the agent calls `event.ack()` when it is done with it."""

    __slots__ = ("on_done",)

    def __init__(self, on_done: Callable[[int], None], *args: Any, **kwargs: Any) -> None:
        self.on_done = on_done
        super().__init__(*args, **kwargs)

    def on_final_ack(self, consumer: Any) -> bool:  # noqa: ARG002 – the signature is Faust's
        setattr(self, "acked", True)  # noqa: B010 – a slot of Faust's, which its types do not show
        if self.tracked and not isinstance(sys.exc_info()[1], NOT_DONE):  # what Faust skipped was not done
            self.on_done(self.offset)
        return True
