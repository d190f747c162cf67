"""An import: what is sent, what is flushed, and how it goes on after an interruption at any call."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.importing import run
from afterword.importing.outcomes import HistoryRefused, ImportOptions, ImportOutcome, LeftOut, Rejected
from afterword.importing.position import ImportCounts, ImportPosition, load_position, save_position
from afterword.importing.run import Import, ImportPlan, next_batch
from afterword.schemas import ConversationFlush, MessageCreated
from afterword.streams.stores.messages import ArchivedMessage
from tests.doubles.stores import MemoryMessages

PLAN = ImportPlan("jsonl", ImportOptions())
Event = MessageCreated | ConversationFlush
BUFFERED = 2


class Killed(Exception):
    """The process has ended here."""


class Log:
    """A topic behind a client's buffer, and the segmenter's rule for duplicates.

    `calls_left`: calls until the process is killed, which loses the buffer.
    """

    def __init__(self, window: int = 1000) -> None:
        self.buffer: deque[Event] = deque()
        self.records: list[Event] = []
        self.seen: dict[str, deque[str]] = {}
        self.accepted: list[str] = []
        self.window = window
        self.calls_left: int | None = None

    def call(self) -> None:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left < 0:
                raise Killed

    async def enqueue(self, event: Event) -> None:
        self.call()
        self.buffer.append(event)
        if len(self.buffer) > BUFFERED:
            self.write(self.buffer.popleft())

    async def drain(self) -> None:
        self.call()
        while self.buffer:
            self.write(self.buffer.popleft())

    def write(self, event: Event) -> None:
        self.records.append(event)
        if isinstance(event, MessageCreated):
            ids = self.seen.setdefault(event.conversation_id, deque(maxlen=self.window))
            if event.id not in ids:
                ids.append(event.id)
                self.accepted.append(f"{event.conversation_id}/{event.id}")


def message(conversation: str, number: int) -> MessageCreated:
    return MessageCreated(id=str(number), conversation_id=conversation, user_id="u", role="user", content="x")


def messages(conversations: str) -> list[ImportOutcome]:
    return [message(name, number) for number, name in enumerate(conversations)]


async def imported(
    log: Log,
    outcomes: list[ImportOutcome],
    position: ImportPosition,
    save: Callable[[], None],
    archive=None,
    size: int = 3,
    plan=PLAN,
    again: bool = False,
) -> None:
    """Run an import from where its position is."""
    importing = Import(log, archive, plan, position, may_be_sent=again)
    while batch := outcomes[position.done : position.done + size]:
        await importing.take(batch, lambda _: None)
        save()
    await importing.finish()
    save()


def whole(log: Log, outcomes: list[ImportOutcome], archive=None, plan=PLAN) -> ImportPosition:
    position = ImportPosition("")
    asyncio.run(imported(log, outcomes, position, lambda: None, archive, plan=plan))
    return position


def kinds(log: Log) -> str:
    """Conversations of the messages in order; of flushes in upper case."""
    return "".join(
        e.conversation_id.upper() if isinstance(e, ConversationFlush) else e.conversation_id for e in log.records
    )


def test_each_conversation_is_flushed_once_at_the_end():
    log = Log()
    position = whole(log, messages("aabab"))
    assert kinds(log) == "aababAB"
    assert position.counts == ImportCounts(messages=5, flushes=2)
    assert position.finished


def test_nothing_is_flushed_when_that_is_not_wanted():
    log = Log()
    whole(log, messages("ab"), plan=ImportPlan("jsonl", ImportOptions(), flush=False))
    assert kinds(log) == "ab"


def test_the_conversation_that_was_idle_for_longest_is_flushed_when_many_are_open(monkeypatch):
    monkeypatch.setattr(run, "OPEN_CONVERSATIONS", 2)
    log = Log()
    whole(log, messages("abacccddd"))
    assert kinds(log) == "abacccBdddACD"


def test_a_flush_has_the_tenant_of_its_conversation():
    log = Log()
    whole(log, [message("a", 1).model_copy(update={"tenant_id": "acme"})])
    assert log.records[-1].tenant_id == "acme"


def test_what_is_left_out_and_rejected_is_counted():
    position = whole(Log(), [LeftOut("empty"), message("a", 1), Rejected("f", 3, "bad"), LeftOut("empty")])
    assert position.counts == ImportCounts(messages=1, flushes=1, rejected=1, left_out=Counter(empty=2))


def test_what_the_archive_has_is_not_sent_again_and_its_conversation_is_not_flushed():
    archive, log = MemoryMessages(), Log()
    known = [m.model_copy(update={"sent_at": datetime.now(UTC)}) for m in messages("aab")[:2]]
    asyncio.run(archive.put_many([ArchivedMessage(m, 0, n) for n, m in enumerate(known)]))
    position = whole(log, messages("aabb"), archive)
    assert kinds(log) == "bbB"
    assert (position.counts.messages, position.counts.known) == (2, 2)


@given(st.text("abcd", max_size=25), st.lists(st.integers(0, 12), max_size=6), st.booleans())
def test_killed_at_any_calls_and_run_again_everything_is_accepted_once_and_flushed_last(conversations, kills, archived):
    outcomes, log, saved = messages(conversations), Log(window=6), [ImportPosition("")]
    archive = MemoryMessages() if archived else None

    async def archive_all() -> None:
        sent = [
            e.model_copy(update={"sent_at": datetime.now(UTC)}) for e in log.records if isinstance(e, MessageCreated)
        ]
        if archive:
            await archive.put_many([ArchivedMessage(m, 0, n) for n, m in enumerate(sent)])

    async def runs() -> None:
        for run_number, calls in enumerate([*kills, None]):
            log.calls_left = calls
            position = copy_of(saved[0])

            def save(position=position) -> None:
                log.call()
                saved[0] = copy_of(position)

            try:
                await imported(log, outcomes, position, save, archive, again=run_number > 0)
            except Killed:
                log.buffer.clear()
                await archive_all()

    asyncio.run(runs())
    assert sorted(log.accepted) == sorted(f"{m.conversation_id}/{m.id}" for m in outcomes)
    assert saved[0].finished
    for name in set(conversations):
        last = [e for e in log.records if e.conversation_id == name][-1]
        assert isinstance(last, ConversationFlush)


def copy_of(position: ImportPosition) -> ImportPosition:
    return ImportPosition(
        position.fingerprint,
        position.done,
        position.finished,
        ImportCounts(**vars(position.counts)),
        dict(position.open),
    )


def test_a_batch_has_fewer_of_large_messages(monkeypatch):
    monkeypatch.setattr(run, "BATCH_CHARACTERS", 10)
    outcomes = iter([message("a", n).model_copy(update={"content": "x" * 4}) for n in range(7)])
    assert [len(next_batch(outcomes, 5)) for _ in range(4)] == [3, 3, 1, 0]
    small = iter(messages("a" * 7))
    assert [len(next_batch(small, 5)) for _ in range(3)] == [5, 2, 0]


def test_a_position_is_read_as_it_was_saved(tmp_path: Path):
    path = tmp_path / "p"
    position = ImportPosition("f", 7, False, ImportCounts(5, 1, 2, 3, Counter(empty=4)), {"b": None, "a": "acme"})
    save_position(path, position)
    found = load_position(path, "f")
    assert found == position
    assert list(found.open) == ["b", "a"]
    assert [p.name for p in tmp_path.iterdir()] == ["p"]


def test_the_position_of_another_history_is_refused_unless_that_is_finished(tmp_path: Path):
    path = tmp_path / "p"
    assert load_position(path, "f") is None
    save_position(path, ImportPosition("f", 7))
    with pytest.raises(HistoryRefused, match="not finished"):
        load_position(path, "g")
    save_position(path, ImportPosition("f", 7, True))
    assert load_position(path, "g") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"version": 2}', b'{"version": 1, "counts": {"x": 1}}'])
def test_what_is_no_position_is_refused(tmp_path: Path, content: bytes):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(HistoryRefused, match="not a position"):
        load_position(tmp_path / "p", "f")
