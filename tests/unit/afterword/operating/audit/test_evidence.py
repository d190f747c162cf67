"""The tables that an audit reads topics, changelogs and stores into, and how SQLite answers the queries."""

import os
import resource
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from aiokafka import ConsumerRecord, TopicPartition

from afterword.operating import evidence
from afterword.operating.audit import FINDINGS, judge
from afterword.operating.evidence import INSERTED_TOGETHER, Evidence, NoRoom, SegmenterState, TopicReader, open_evidence
from afterword.schemas import EpisodeRedo
from afterword.schemas.dead_letters import ARCHIVE, dead_letter
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.records import Headers, cloud_event
from afterword.streams.errors import StateUnreadable
from afterword.streams.kafka.log_reader import Extent
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import load_settings
from tests.samples import NOON
from tests.unit.segmenter.chat import Chat, limits, say, says


def fill(evidence: Evidence) -> None:
    """Add more than SQLite holds in memory, so that it is on disk."""
    for number in range(100_000):
        evidence.add("indexed", f"{number}".zfill(1000), 1)


def files() -> list[Path]:
    """Open files of SQLite's."""
    opened = Path("/proc/self/fd").iterdir()
    return [file for file in opened if file.is_symlink() and "etilqs" in os.readlink(file)]  # noqa: PTH115 – mypy


def test_evidence_keeps_the_last_of_equal_rows() -> None:
    with open_evidence() as evidence:
        evidence.add("compacted", "episode", "c:1", 0, False, 1)
        evidence.add("compacted", "conversation", "c:1", 0, False, None)
        evidence.add("compacted", "episode", "c:1", 0, True, 2)
        assert list(evidence.rows("SELECT kind, is_gone, revision FROM compacted ORDER BY 1")) == [
            ("conversation", False, None),
            ("episode", True, 2),
        ]


@pytest.mark.parametrize("number", [1, INSERTED_TOGETHER, INSERTED_TOGETHER + 1])
def test_query_sees_every_added_row_once(number: int) -> None:
    with open_evidence() as evidence:
        for offset in range(number):
            evidence.add("flush", 0, offset, "c", None)
        assert evidence.value("SELECT COUNT(*) FROM flush") == number
        assert evidence.value("SELECT COUNT(*) FROM flush") == number


def test_evidence_file_is_private_and_unlinked() -> None:
    with open_evidence() as evidence:
        fill(evidence)
        [file] = files()
        found = file.stat()
        assert found.st_size > 0
        assert (found.st_nlink, found.st_mode & 0o777) == (0, 0o600)
    assert not files()


def test_evidence_file_that_cannot_grow_is_named() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
        with pytest.raises(NoRoom, match="set TMPDIR to another"), open_evidence() as evidence:
            fill(evidence)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


FIRST, OTHER, GROWN = TopicPartition("messages", 0), TopicPartition("messages", 1), TopicPartition("messages", 2)


def test_second_reading_begins_where_the_first_ended() -> None:
    start = Extent({FIRST: 3, OTHER: 0}, {FIRST: 10, OTHER: 5})
    later = Extent({FIRST: 4, OTHER: 0, GROWN: 0}, {FIRST: 12, OTHER: 5, GROWN: 2})
    assert (start.size, start.truncated) == (12, {"messages"})
    came = start.before(later)
    assert came == Extent({FIRST: 10, OTHER: 5, GROWN: 0}, {FIRST: 12, OTHER: 5, GROWN: 2})
    assert came.size == 4


def record(value: bytes, headers: Headers) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("episode.closed", 0, 7, 0, 0, b"c1", value, None, 2, len(value), tuple(headers))


def test_redo_request_counts_as_neither_episode_nor_change() -> None:
    redo = EpisodeRedo(conversation_id="c1", episode_id="c1:1", revision=1, requested_at=NOON)
    headers = cloud_event(EPISODE_REDO, "c1:1:1:redo", "test", NOON)
    kafka = load_settings().kafka
    with open_evidence() as evidence:
        take = TopicReader(evidence, kafka).takes()[kafka.episodes_topic]
        take(record(redo.to_json(), headers))
        rows = "SELECT (SELECT COUNT(*) FROM closed) + (SELECT COUNT(*) FROM amended) + COUNT(*) FROM invalid"
        assert evidence.value(rows) == 0
        take(record(b"{}", headers))
        assert evidence.value("SELECT COUNT(*) FROM invalid WHERE kind = 'episode'") == 1


def test_message_only_the_archiver_rejected_belongs_to_its_episode() -> None:
    kafka = load_settings().kafka
    original = ConsumerRecord("messages", 2, 0, 1, 0, b"c", b"{}", None, 1, 2, ())
    with open_evidence() as evidence:
        take = TopicReader(evidence, kafka).takes()[kafka.dead_letters(kafka.messages_topic)]
        for stage in ("segmenter", ARCHIVE):
            _, value, headers = dead_letter(original, stage=stage, error_type="unforeseen", message="", now_ms=1)
            take(record(value or b"", headers))
        assert list(evidence.rows("SELECT * FROM dead_letter")) == [("message", 2, 0, False)]


FOREIGN = b"\xc3\x28"


class Row(NamedTuple):
    key: bytes
    value: bytes | None
    partition: int = 3
    offset: int = 0


def read(chat: Chat, *later: Row) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    state = SegmenterState()
    for key, value in chat.messages.items():
        state.take(MESSAGES, Row(key, value))  # type: ignore[arg-type]  # it has all that is read of a record
    for row in [*(Row(key, value) for key, value in chat.conversations.items()), *later]:
        state.take(CONVERSATIONS, row)  # type: ignore[arg-type]  # it has all that is read of a record
    with evidence.open_evidence() as tables:
        state.add_to(tables)
        return list(tables.rows("SELECT * FROM pending")), list(tables.rows("SELECT * FROM damage"))


@pytest.fixture
def chat() -> Chat:
    chat = Chat(limits())
    chat.process([*says("a", "b"), say("x", conversation_id="d")])
    return chat


def pending(offset: int, scope: str) -> tuple[Any, ...]:
    return 3, offset, scope, scope, False


@pytest.mark.parametrize("damage", [b"", b"short", b"\0" * 8 + b"\1\0not JSON", b"\0" * 8 + b"\1\0[]"])
def test_damaged_row_is_named_and_others_are_read(chat: Chat, damage: bytes) -> None:
    chat.conversations[b"c"] = damage
    rows, damaged = read(chat)
    assert [found[:2] for found in damaged] == [("c", 3)]
    assert {row for row in rows if not row[-1]} == {pending(2, "d")}


def test_damaged_message_is_named(chat: Chat) -> None:
    chat.messages = {key: value + b"" if value[:16] else value for key, value in chat.messages.items()}
    [first, *_] = [key for key, value in chat.messages.items() if len(value) > 20]
    chat.messages[first] = chat.messages[first][:20]
    assert read(chat)[1] == [("c", 3, "a message's row is cut off")]


def test_rewritten_row_is_no_longer_damaged(chat: Chat) -> None:
    row = chat.conversations[b"c"]
    chat.conversations[b"c"] = b"short"
    assert read(chat, Row(b"c", row))[1] == []
    assert read(chat, Row(b"c", None))[1] == []


@pytest.mark.parametrize("table", ["conversations", "messages"])
def test_damaged_key_names_no_conversation(chat: Chat, table: str) -> None:
    rows: dict[str, Any] = {"conversations": chat.conversations, "messages": chat.messages}
    rows[table][FOREIGN] = next(iter(chat.conversations.values()))
    assert [found[0] for found in read(chat)[1]] == [None]


def test_row_of_a_later_release_stops_the_audit(chat: Chat) -> None:
    chat.conversations[b"c"] = b"\0" * 8 + b"\37[]"
    with pytest.raises(StateUnreadable, match="only a later release can read"):
        read(chat)


@pytest.mark.parametrize("finding", FINDINGS)
def test_no_query_scans_a_table_per_row_of_another(finding: str) -> None:
    with open_evidence() as evidence:
        judge(evidence)
        plan = list(evidence.rows(f"EXPLAIN QUERY PLAN {FINDINGS[finding].query}"))
    steps = {step: (parent, detail) for step, parent, _, detail in plan}

    def is_repeated(step: int) -> bool:
        """Return whether the step is an inner loop, or belongs to a subquery for each row."""
        parent, _ = steps[step]
        if any(other < step and of == parent and detail.startswith("S") for other, (of, detail) in steps.items()):
            return True
        above = steps.get(parent, (0, ""))[1]
        return "CORRELATED" in above or (parent in steps and "LIST" not in above and is_repeated(parent))

    scans = [step for step, (_, detail) in steps.items() if detail.startswith("SCAN ") and "CONSTANT" not in detail]
    assert [steps[step][1] for step in scans if is_repeated(step)] == []
