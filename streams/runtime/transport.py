"""The engine as Faust sees it: a transport with the scheme `eos://`."""

from typing import Any

from faust.transport import base
from faust.transport.drivers import aiokafka as driver

from afterword.streams.runtime.consumer import Consumer
from afterword.streams.runtime.logger import LIFE_CYCLE
from afterword.streams.runtime.producer import Producer


class Conductor(base.Conductor):
    """Delivers messages to agents; what an acknowledgement means is the message's own business."""

    logger = LIFE_CYCLE

    def acks_enabled_for(self, topic: str) -> bool:  # noqa: ARG002 – the signature is Faust's
        return False


class Transport(driver.Transport):
    """Registered under the entry points `faust.transports` and, for its tables, `faust.stores`."""

    Consumer: Any = Consumer
    Producer: Any = Producer
    Conductor: Any = Conductor
