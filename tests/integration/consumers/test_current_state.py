"""The program of the how-to page copies the compacted topic."""

import asyncio
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from aiokafka import AIOKafkaProducer

from afterword import RevisionSubscriber, SummarySubscriber
from afterword.embedded.process import Process
from afterword.streams.settings import Settings
from afterword.streams.summarizer.agent import current_output
from afterword.streams.summarizer.reconciler import Event
from tests.e2e.deployment import environment_of
from tests.samples import a_summary, a_tombstone
from tests.waiting import until

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "current-state.md"
WAIT_SECONDS = 180


async def keep(producer: AIOKafkaProducer, settings: Settings, *events: Event) -> None:
    for event in events:
        made = current_output(settings.kafka, event)
        await producer.send_and_wait(made.topic, made.value, key=made.key, headers=made.headers, partition=0)


def titles(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as database:
        try:
            return dict(database.execute("SELECT id, title FROM episode"))
        except sqlite3.OperationalError:  # not created yet
            return {}


async def test_documented_loader_copies_the_table_and_follows_it(
    settings: Settings, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert script is not None
    (tmp_path / "load.py").write_text(script[1])
    await keep(producer, settings, a_summary(1), a_summary(2))
    environment = {**environment_of(settings), "PYTHONPATH": str(ROOT)}
    copy = tmp_path / "copy.sqlite"
    loader = Process(
        "loader",
        [sys.executable, "load.py", str(copy)],
        tmp_path / "loader.log",
        environment=environment,
        directory=tmp_path,
    )
    try:
        await until(lambda: titles(copy) == {"c1:1": "Title 1", "c1:2": "Title 2"})
        await keep(producer, settings, a_summary(1, revision=2, title="Changed"), a_tombstone(2).deletion)
        await until(lambda: titles(copy) == {"c1:1": "Changed"})
    finally:
        await asyncio.to_thread(loader.stop)


async def test_subscribers_read_the_table_from_the_settings(settings: Settings, producer: AIOKafkaProducer) -> None:
    deleted = a_tombstone(1).deletion
    await keep(producer, settings, a_summary(1), deleted, a_summary(2))
    async with asyncio.timeout(WAIT_SECONDS):
        async with SummarySubscriber.from_settings(settings, group_id="kept", from_state=True) as events:
            assert [(await anext(events)).ordinal for _ in range(2)] == [1, 2]
        async with RevisionSubscriber.from_settings(settings, group_id="current", from_state=True) as revisions:
            assert [await anext(revisions) for _ in range(3)] == [a_summary(1), deleted, a_summary(2)]
