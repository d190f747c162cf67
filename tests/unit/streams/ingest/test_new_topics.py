"""Topics created while ingest runs."""

from typing import Any

from aiokafka.errors import KafkaConnectionError

from afterword.streams.errors import AfterwordError
from afterword.streams.ingest.agent import TopicsChanged, crash_on_new_topics
from afterword.streams.ingest.sources import parse_sources
from afterword.streams.settings import Kafka
from tests.unit.streams.ingest.records import FIELDS

SOURCES = parse_sources(f'[[sources]]\ntopics = ["sales-.*-chat"]\n[sources.map]\n{FIELDS}', "")


class Cluster:
    """A cluster with these topics at each look; None means that no broker answers."""

    def __init__(self, *looks: list[str] | None) -> None:
        self._looks = list(looks)

    async def list_topics(self) -> list[str]:
        found = self._looks.pop(0)
        if found is None:
            raise KafkaConnectionError
        return found


class App:
    async def crash(self, error: AfterwordError) -> None:
        self.error = error


async def test_matching_new_topic_restarts_the_worker() -> None:
    app: Any = App()
    known = ["sales-eu-chat", "messages"]
    cluster = Cluster(known, None, [*known, "other"], [*known, "sales-us-chat"])
    await crash_on_new_topics(app, SOURCES, {"sales-eu-chat": 0}, cluster, Kafka(), seconds=0)
    assert isinstance(app.error, TopicsChanged)
    assert str(app.error).startswith("topic sales-us-chat ")
