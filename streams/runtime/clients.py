"""The aiokafka clients that a partition opens for itself: a producer to commit with, others to recover with."""

from collections.abc import Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient


class Clients:
    """One place to make them, so that the engine's logic can be run on clients of another kind: a model's."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """`settings`: where the brokers are and who we are, for all of them."""
        self._settings = settings

    def producer(self, **settings: Any) -> Any:
        return AIOKafkaProducer(**self._settings, **settings)

    def consumer(self, **settings: Any) -> Any:
        return AIOKafkaConsumer(**self._settings, **settings)

    def admin(self) -> Any:
        return AIOKafkaAdminClient(**self._settings)
