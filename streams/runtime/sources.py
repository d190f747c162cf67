"""Identity of a source topic: whether it is the one that made the state, as a recreated topic has the same name."""

import asyncio
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from afterword.streams.runtime.database import DatabasePosition
from afterword.streams.runtime.errors import SourceRecreated
from afterword.streams.runtime.layouts import look_at_layouts

log = structlog.get_logger()


def check_source(topic: str, known: DatabasePosition, found: str) -> None:
    """Refuse a source topic with another id than that of the last bookmark. Raises: SourceRecreated."""
    if known.source >= 0 and known.source_id and found and known.source_id != found:
        raise SourceRecreated(topic=topic, expected=known.source_id, found=found)


async def watch_sources(app: Any) -> None:
    """Look every `source_look_seconds` at ids and layouts of the sources; stop the worker when one was recreated.

    aiokafka goes on in the new topic without a word, if that reaches beyond the position.
    """
    while True:
        await asyncio.sleep(app.engine.source_look_seconds)
        for look in (look_at_ids, look_at_layouts):
            try:
                await look(app)
            except (KafkaError, OSError, TimeoutError, AssertionError):  # no broker, or one that names none yet
                continue
            except SourceRecreated as error:
                app.consumer.stop_worker(error)
                return


async def look_at_ids(app: Any) -> None:
    """Compare the ids of the sources with those of the state. Raises: SourceRecreated, KafkaError, OSError."""
    opened = [(s.topic, p.session.database) for s, p in app.consumer.partitions.items() if p.session is not None]
    if not opened:
        return
    admin = app.consumer.clients().admin()
    try:
        await admin.start()
        ids = await admin.topic_ids(sorted({topic for topic, _ in opened}))
    finally:
        await admin.close()
    for topic, database in opened:
        check_source(topic, database.position, ids.get(topic, ""))
