"""An import: what is sent and flushed, that every message is accounted for, and that it can be run again."""

import asyncio
from collections import Counter, deque
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import ConversationFlush, MessageCreated
from afterword.streams.settings import Settings, Sqlite
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from afterword.writing.importing.formats import Found, ImportOptions, ImportOutcome, LeftOut, Rejected
from afterword.writing.importing.run import Import, ImportCounts, import_history
from afterword.writing.produce import send_at_rate
from tests.doubles.stores import MemoryMessages
from tests.unit.afterword.writing.importing.histories import read_all

Event = MessageCreated | ConversationFlush
BUFFERED = 2


class Killed(Exception):
    """The process was killed here."""


class Log:
    """A topic behind a client's buffer. `calls_left`: calls until the process is killed, which loses the buffer."""

    def __init__(self) -> None:
        self.buffer: deque[Event] = deque()
        self.records: list[Event] = []
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
            self.records.append(self.buffer.popleft())

    async def drain(self) -> None:
        self.call()
        self.records += self.buffer
        self.buffer.clear()

    @property
    def messages(self) -> list[MessageCreated]:
        return [event for event in self.records if isinstance(event, MessageCreated)]


def message(conversation: str, number: int, **changes: Any) -> Found:
    fields = {"id": str(number), "conversation_id": conversation, "user_id": "u", "role": "user", "content": "x"}
    return Found(f"f:{number}", MessageCreated(**fields | changes), is_shared=True)


def messages(conversations: str) -> list[ImportOutcome]:
    return [message(name, number) for number, name in enumerate(conversations)]


async def archive(log: Log, into: MemoryMessages) -> None:
    """Do what the archiver does, which decodes messages with their time."""
    sent = [one.model_copy(update={"sent_at": one.sent_at or datetime.now(UTC)}) for one in log.messages]
    await into.put_many([ArchivedMessage(one, 0, offset) for offset, one in enumerate(sent)])


async def sent(
    log: Log, outcomes: list[ImportOutcome], archived: MemoryMessages | None, rejected: list[Rejected]
) -> ImportCounts:
    importing = Import(lambda _: None, rejected.append, archived)
    await send_at_rate(log, importing.events(iter(outcomes)))
    return importing.counts


def whole(
    log: Log,
    outcomes: list[ImportOutcome],
    archived: MemoryMessages | None = None,
    rejected: list[Rejected] | None = None,
) -> ImportCounts:
    return asyncio.run(sent(log, outcomes, archived, rejected if rejected is not None else []))


def kinds(log: Log) -> str:
    """Conversations of the messages in order; of flushes in upper case."""
    return "".join(
        e.conversation_id.upper() if isinstance(e, ConversationFlush) else e.conversation_id for e in log.records
    )


def test_each_conversation_is_flushed_once_with_its_tenant():
    log = Log()
    outcomes = [*messages("aaba"), message("b", 4, tenant_id="acme")]
    assert whole(log, outcomes) == ImportCounts(sent=5, flushes=2)
    assert (kinds(log), log.records[-1].tenant_id) == ("aababAB", "acme")


def test_omitted_and_rejected_messages_are_counted():
    outcomes = [LeftOut("empty"), message("a", 1), Rejected("f:3", "bad", 4), LeftOut("empty", 2)]
    rejected: list[Rejected] = []
    counts = whole(Log(), outcomes, rejected=rejected)
    assert counts == ImportCounts(sent=1, flushes=1, rejected=4, left_out=Counter(empty=3))
    assert (counts.read, [str(one) for one in rejected]) == (5, ["f:3: bad (4 messages)"])


def test_equal_repeat_is_a_duplicate_and_a_changed_one_rejected():
    others = [message("a", 1, content="secret"), message("a", 1, tools=("weather",))]
    outcomes = [message("a", 1), message("a", 1), *others, message("b", 1, content="y")]
    log, rejected = Log(), list[Rejected]()
    assert whole(log, outcomes, rejected=rejected) == ImportCounts(sent=2, duplicates=1, rejected=2, flushes=2)
    assert [str(one) for one in rejected] == ["f:1: another message of its conversation has the same id"] * 2


def test_message_that_differs_from_the_archived_one_is_rejected():
    log, archived = Log(), MemoryMessages()
    whole(log, [message("a", 1), message("b", 1)])
    asyncio.run(archive(log, archived))
    again = [message("a", 1), message("b", 1, content="other"), message("b", 1, user_id="v")]
    rejected: list[Rejected] = []
    counts = whole(log, again, archived, rejected=rejected)
    assert (counts.sent, counts.duplicates, counts.rejected) == (0, 1, 2)
    assert len(log.messages) == 2


def copy(conversation: str, number: int, *originals: str) -> Found:
    return message(conversation, number)._replace(copied_from=originals)


@given(st.permutations([message("a", 0), message("a", 1), copy("b", 0, "a"), copy("c", 0, "b"), copy("c", 2, "b")]))
def test_copied_message_is_sent_once_in_any_order(listed):
    log = Log()
    counts = whole(log, listed)
    assert Counter(one.id for one in log.messages) == {"0": 1, "1": 1, "2": 1}
    assert (counts.sent, counts.duplicates) == (3, 2)


def test_copy_of_an_archived_message_is_a_duplicate():
    async def run() -> None:
        log, stored = Log(), MemoryMessages()
        await sent(log, [message("a", 0)], stored, [])
        await archive(log, stored)
        changed = copy("b", 1, "a")
        again = Log()
        counts = await sent(again, [copy("b", 0, "a"), changed], stored, [])
        assert ([one.id for one in again.messages], counts.duplicates) == (["1"], 1)

    asyncio.run(run())


def test_copy_with_another_text_is_sent():
    log = Log()
    other = message("b", 0, content="y")._replace(copied_from=("a",))
    assert whole(log, [message("a", 0), other]).sent == 2


def test_other_users_conversation_gets_nothing_from_a_record():
    def talk(user: str) -> list[ImportOutcome]:
        said = [{"role": "user", "content": "Hello, are you there?"}]
        return read_all("messages", {"a.json": [{"id": 1, "user_id": user, "messages": said}]}, ImportOptions())

    log, archived = Log(), MemoryMessages()
    assert whole(log, [*talk("pat"), *talk("quinn")]).rejected == 1
    asyncio.run(archive(log, archived))
    assert whole(log, talk("quinn"), archived).rejected == 1
    assert whole(log, talk("pat"), archived).duplicates == 1
    assert [one.user_id for one in log.messages] == ["pat"]


async def test_dry_run_knows_the_archive(tmp_path):
    settings = Settings(sqlite=Sqlite(path=tmp_path / "afterword.db"))
    log = Log()
    await asyncio.to_thread(whole, log, [message("a", 0, user_id="pat")])
    async with open_stores(settings) as stores:
        await archive(log, stores.messages)
    outcomes = [message("a", 1, user_id="quinn")._replace(is_shared=False), message("a", 0, user_id="pat")]
    rejected: list[Rejected] = []
    counts = await import_history(settings, iter(outcomes), lambda _: None, rejected.append, dry_run=True)
    assert (counts.sent, counts.duplicates, counts.is_compared) == (0, 1, True)
    assert [one.where for one in rejected] == ["f:1"]


def test_archived_messages_are_neither_resent_nor_flushed():
    log, archived = Log(), MemoryMessages()
    whole(log, messages("aab")[:2])
    asyncio.run(archive(log, archived))
    log.records.clear()
    counts = whole(log, messages("aabb"), archived)
    assert kinds(log) == "bbB"
    assert (counts.sent, counts.duplicates) == (2, 2)


@given(st.text("abcd", max_size=25), st.lists(st.integers(0, 12), max_size=6))
def test_repeatedly_killed_import_sends_each_message_once(conversations, kills):
    outcomes, log, archived = messages(conversations), Log(), MemoryMessages()

    async def runs() -> ImportCounts:
        for calls in kills:
            log.calls_left = calls
            try:
                await sent(log, outcomes, archived, [])
            except Killed:
                log.buffer.clear()
            await archive(log, archived)
        log.calls_left = None
        return await sent(log, outcomes, archived, [])

    counts = asyncio.run(runs())
    assert counts.read == counts.sent + counts.duplicates == len(outcomes)
    assert sorted(one.id for one in log.messages) == sorted(o.message.id for o in outcomes)


records = st.fixed_dictionaries(
    {"messages": st.lists(st.sampled_from([None, "a", "b"]).map(lambda c: {"role": "user", "content": c}), max_size=4)},
    optional={
        "id": st.sampled_from([1, "1", 2, {"x": 1}]),
        "user_id": st.sampled_from([7, "7", "bo", {"id": 1}]),
        "created_at": st.sampled_from([1718000000, "soon"]),
    },
)


@given(st.lists(records, max_size=6))
def test_every_message_is_sent_duplicate_or_rejected(listed):
    log, rejected = Log(), list[Rejected]()
    outcomes = read_all("messages", {"a.json": listed}, ImportOptions("admin"))
    counts = whole(log, outcomes, rejected=rejected)
    without_text = sum(said["content"] is None for record in listed for said in record["messages"])
    assert counts.read >= sum(len(record["messages"]) for record in listed) - without_text
    assert counts.sent == len(log.messages)
    assert counts.rejected == sum(one.messages for one in rejected)
