"""A table of PostgreSQL, read by a real Debezium, connected by what init writes alone."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from afterword.embedded.claims import free_ports
from afterword.embedded.java import JarCache, command_line, parse_lock
from afterword.streams.kafka.log_reader import open_log
from afterword.streams.private import cache_directory
from afterword.streams.roles import ALWAYS_RUN
from afterword.streams.settings import Settings
from tests.e2e.deployment import afterword, deployed
from tests.e2e.test_ingest import until_summarized
from tests.e2e.test_tables import CONVERSATIONS, LEFT, archived, has_texts, settings, summarized
from tests.waiting import until

__all__ = ("settings",)

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(not PROGRAMS, reason="PostgreSQL is not installed")]
LOCK = Path(__file__).parents[1] / "data" / "debezium" / "jars.lock"
CONNECT = "org.apache.kafka.connect.cli.ConnectStandalone"
START_SECONDS = 180.0
TABLE = """
CREATE TABLE chat_messages (
    id bigint PRIMARY KEY, conversation_id uuid NOT NULL, user_id bigint NOT NULL, sender text NOT NULL,
    body text, sent_at timestamptz NOT NULL, is_read boolean NOT NULL DEFAULT false
);
ALTER TABLE chat_messages REPLICA IDENTITY FULL;
"""
ROWS = (
    (1, 0, 501, "customer", "Hello, my grey kettle leaks since Tuesday.", "2024-03-05T09:15:00Z"),
    (2, 0, 501, "bot", "Is the lid closed when it leaks?", "2024-03-05T09:15:09Z"),
    (3, 0, 501, "customer", "Yes, it drips from the spout.", "2024-03-05T09:16:30Z"),
    (4, 1, 502, "customer", "Where is the blue lamp I ordered?", "2024-03-06T08:00:00Z"),
    (5, 1, 502, "bot", "It left Lyon on Monday.", "2024-03-06T08:00:05Z"),
)
LATER = (101, 0, 501, "bot", "Then the seal is worn.", "2024-03-05T09:17:00Z")
CHANGES = """
UPDATE chat_messages SET is_read = true WHERE id = 101;
UPDATE chat_messages SET body = 'Where is the green lamp I ordered?' WHERE id = 4;
DELETE FROM chat_messages WHERE id = 1;
"""
UNWRAPPED = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    "transforms.unwrap.add.fields": "op",
}


def insert(row: Sequence[object]) -> str:
    number, of, *others = row
    return f"INSERT INTO chat_messages VALUES {(number, CONVERSATIONS[of], *others)};"  # type: ignore[call-overload]


class Postgres:
    """A server of its own, which writes what Debezium reads."""

    def __init__(self) -> None:
        [self.port] = free_ports(1)
        self._user = "postgres" if os.getuid() == 0 else None  # it refuses to run as root

    @contextmanager
    def running(self) -> Iterator[None]:
        with tempfile.TemporaryDirectory() as directory:  # the test's own may not be read by another user
            if self._user:
                shutil.chown(directory, self._user)
            self._run("initdb", "-D", directory, "-A", "trust", "-U", "postgres")
            options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c wal_level=logical -k {directory}"
            self._run("pg_ctl", "-D", directory, "-w", "-l", f"{directory}/log", "-o", options, "start")
            try:
                yield
            finally:
                self._run("pg_ctl", "-D", directory, "-m", "immediate", "stop")

    def sql(self, text: str) -> None:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres")
        self._run("psql", *where, "-v", "ON_ERROR_STOP=1", "-q", "-c", text)

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(PROGRAMS[-1].with_name(program)), *arguments]
        subprocess.run(command, user=self._user, check=True, stdout=subprocess.DEVNULL, cwd="/")


@contextmanager
def connect(directory: Path, brokers: str, connector: Mapping[str, str]) -> Iterator[None]:
    """Run Kafka Connect with one connector."""
    jars = JarCache(cache_directory(), parse_lock(LOCK.read_text()))
    jars.ensure()
    json = "org.apache.kafka.connect.json.JsonConverter"
    worker = {
        "bootstrap.servers": brokers,
        "key.converter": json,
        "value.converter": json,
        "offset.storage.file.filename": str(directory / "offsets"),
        "listeners": f"http://127.0.0.1:{free_ports(1)[0]}",
    }
    files = [directory / "worker.properties", directory / "connector.properties"]
    for file, lines in zip(files, (worker, connector), strict=True):
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    command = command_line(jars.classpath("debezium"), CONNECT, list(map(str, files)))
    with (directory / "connect.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            yield
        finally:
            process.kill()


async def count(settings: Settings, topic: str) -> int:
    async with open_log(settings.kafka) as log:
        return len([None async for _ in log.records(topic)]) if topic in await log.topics() else 0


@asynccontextmanager
async def changed_table(
    settings: Settings, prefix: str, transforms: Mapping[str, str], directory: Path
) -> AsyncIterator[str]:
    """Change a table while Debezium reads it, and return its topic."""
    postgres = Postgres()
    topic = f"{prefix}.public.chat_messages"
    connector = {
        "name": "chat",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.hostname": "127.0.0.1",
        "database.port": str(postgres.port),
        "database.user": "postgres",
        "database.password": "postgres",
        "database.dbname": "postgres",
        "topic.prefix": prefix,
        "table.include.list": "public.chat_messages",
        "topic.creation.default.partitions": "1",
        "topic.creation.default.replication.factor": "1",
        **transforms,
    }

    async def has_records(number: int) -> bool:
        return await count(settings, topic) >= number

    with postgres.running():
        postgres.sql(TABLE + "".join(map(insert, ROWS)))
        with connect(directory, settings.kafka.bootstrap_servers, connector):
            await until(lambda: has_records(len(ROWS)), "no snapshot arrived", START_SECONDS)
            postgres.sql(insert(LATER))
            postgres.sql(CHANGES)
            tombstones = not transforms
            await until(lambda: has_records(len(ROWS) + 4 + tombstones), "no changes arrived", START_SECONDS)
            yield topic


@pytest.mark.parametrize("transforms", [{}, UNWRAPPED], ids=["envelope", "rewritten"])
async def test_table_of_real_changes_is_connected_by_init(
    transforms: Mapping[str, str], settings: Settings, unique: Callable[[str], str], tmp_path: Path
) -> None:
    async with changed_table(settings, unique("crm"), transforms, tmp_path) as topic:
        code, said, _ = await afterword(settings, "init", "--topic", topic)
    assert code == 0, said
    async with deployed(settings, tmp_path) as deployment:
        for role in ("ingest", *ALWAYS_RUN):
            deployment.start(role)
        await until(lambda: has_texts(settings, LEFT))
        await until_summarized(deployment)
        assert (await archived(settings))["101"] == "Then the seal is worn."
        summaries = await summarized(settings)
        assert "green lamp" in summaries
        assert "blue lamp" not in summaries
        assert "grey kettle" not in summaries
        assert await deployment.stop("ingest") == 0
