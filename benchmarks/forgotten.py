"""What a forgotten conversation costs: bytes of its stub, on disk and in RocksDB's memory; and the forgetting itself.

python -m benchmarks.forgotten [CONVERSATIONS]

No Kafka: the segmenter's rules and the engine's database, as a worker has them. Of conversations with 40 messages.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from rocksdict import Options, Rdict

from afterword.streams.runtime.database import Database, DatabasePosition, RowChange
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.state import (
    CONVERSATIONS,
    MESSAGES,
    Deadlines,
    Scope,
    State,
    body_key,
    encode_seq,
    encode_state,
    id_digest,
    prefix,
    record_key,
    seen_key,
)
from afterword.streams.settings import Episodes
from benchmarks.load import BEGIN

DEFAULT = 50_000
OF_40_MESSAGES = 40
AT_ONCE = 1000
"""Conversations in a transaction, as `Options.tick_keys`."""
BEGIN_MS = int(BEGIN.timestamp() * 1000)


class Table(dict[bytes, bytes | None]):
    """Changes over the rows of a database."""

    def __init__(self, database: Database, name: str) -> None:
        self._database, self._name = database, name

    def get(self, key: bytes, /) -> bytes | None:  # type: ignore[override]  # of `Rows`, which has no default
        return self[key] if key in self else self._database.get(self._name, key)

    def __delitem__(self, key: bytes) -> None:
        self[key] = None


def silent(number: int) -> Iterator[tuple[str, RowChange]]:
    """Rows of a conversation that is over: counters, the digest of each id, and where it was seen."""
    name = str(UUID(bytes=id_digest(str(number))))
    scope = prefix(Scope(name))
    count = OF_40_MESSAGES
    state = State(
        "acme",
        next_seq=count,
        first_pending=count,
        open_first=count,
        overlap_first=count - 2,
        last_ordinal=4,
        last_sent_ms=BEGIN_MS,
        latest_record_ms=BEGIN_MS,
        latest_event_ms=BEGIN_MS,
        since_ms=BEGIN_MS,
        silent_ms=BEGIN_MS,
    )
    yield CONVERSATIONS, (record_key(name), encode_state(state))
    for seq in range(count):
        digest = id_digest(f"{number}-{seq}")
        yield MESSAGES, (body_key(scope, seq), digest)
        yield MESSAGES, (seen_key(scope, digest), encode_seq(seq))


def fill(database: Database, conversations: int) -> None:
    for first in range(0, conversations, AT_ONCE):
        changes: dict[str, list[RowChange]] = {CONVERSATIONS: [], MESSAGES: []}
        for number in range(first, min(first + AT_ONCE, conversations)):
            for table, change in silent(number):
                changes[table].append(change)
        database.write(changes, DatabasePosition())


def forget(database: Database, episodes: Episodes) -> int:
    """Forget all that are due; return how many there were."""
    now_ms, forgotten = BEGIN_MS + episodes.forget_after_ms, 0
    while due := database.due(now_ms, AT_ONCE):
        tables = {name: Table(database, name) for name in (CONVERSATIONS, MESSAGES)}
        segmenter = Segmenter(episodes, "e", "d", tables[CONVERSATIONS], tables[MESSAGES], count_tokens=len)
        forgotten += segmenter.tick([key for _, key in due], now_ms, "messages", 0).forgotten
        database.write({name: list(table.items()) for name, table in tables.items()}, DatabasePosition())
    return forgotten


def measured(path: Path) -> dict[str, int]:
    """Bytes on disk and in memory, compacted and reopened, as after RocksDB has come to rest."""
    rows = Rdict(str(path), Options(raw_mode=True))
    rows.compact_range(None, None)
    rows.close()
    again = Database(path, {CONVERSATIONS: None, MESSAGES: None})
    stubs = list(again.keys(CONVERSATIONS))  # every table is open
    left = sum(1 for _ in again.keys(MESSAGES))
    found = {
        "conversations": len(stubs),
        "rows left": left,
        "state": sum(len(key) + len(again.get(CONVERSATIONS, key) or b"") for key in stubs),
        "disk": sum(file.stat().st_size for file in path.glob("*.sst")),
        "memory": again._db.property_int_value("rocksdb.estimate-table-readers-mem") or 0,
    }
    again.close()
    return found


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("conversations", type=int, nargs="?", default=DEFAULT)
    number = parser.parse_args(arguments).conversations
    episodes = Episodes()
    with tempfile.TemporaryDirectory(prefix="afterword-forgotten-") as directory:
        path = Path(directory) / "state"
        database = Database(path, {CONVERSATIONS: Deadlines(episodes.forget_after_ms), MESSAGES: None})
        fill(database, number)
        began, core = time.perf_counter(), time.process_time()
        forgotten = forget(database, episodes)
        rate, core = forgotten / (time.perf_counter() - began), (time.process_time() - core) / forgotten
        database.close()
        found = measured(path)
    print(f"{forgotten} of {number} conversations forgotten: {rate:.0f} a second, {core * 1e6:.0f} µs of a core each")
    each = {name: value / number for name, value in found.items()}
    print(f"state: {each['state']:.1f} bytes each, {found['rows left']} rows of messages are left")
    print(f"on disk: {each['disk']:.1f} bytes each; in RocksDB's memory beside its cache: {each['memory']:.2f}")


if __name__ == "__main__":
    main(sys.argv[1:])
