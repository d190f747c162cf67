"""The segmenter on the engine's slices: bounded in bytes, and a failing record does not affect its neighbours."""

import asyncio
import time
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.errors import AfterwordError
from afterword.streams.segmenter.agent import PIECE, EventHandler
from afterword.streams.segmenter.processor import ByteBudget, Segmenter
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, deadline_of
from afterword.streams.settings import Episodes
from afterword.streams.tasks import TURN_SECONDS
from afterword.streams.telemetry.metrics import Metrics
from distributions.engine.tests.partition import Partition, Producer
from faust_eos.batch import Batches
from faust_eos.options import Options
from faust_eos.transaction import size_of
from tests.unit.segmenter.chat import DEAD_LETTERS, EPISODES, NOON, STORES, Chat, Sent, delete, edit, flush, limits, say

BOOBY_TRAP = "the word on which the tokenizer fails"
SLOW = "a text for which the tokenizer needs half a turn"
MEGABYTE = 1 << 20


def count_tokens(text: str) -> int:
    if BOOBY_TRAP in text:
        raise ZeroDivisionError(f"division of {text}")
    if text == SLOW:
        compute(TURN_SECONDS / 2)
    return len(text)


def compute(seconds: float) -> None:
    """Use this much CPU time, however long that takes."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


class Deployed:
    """The segmenter's handler on a partition in memory."""

    def __init__(self, episodes: Episodes, producer: Producer | None = None, *, partitions: int | None = 4) -> None:
        self.now_ms = NOON
        engine = Options(clock=lambda: self.now_ms, retry_wait_seconds=0.0)
        tables = {name: STORES[name] for name in (CONVERSATIONS, MESSAGES)}
        segmenter = Segmenter(episodes, EPISODES, DEAD_LETTERS, *tables.values(), count_tokens=count_tokens)
        self.metrics = Metrics("segmenter", "1.2.3")
        consumer = SimpleNamespace(topic_partitions=lambda _: partitions)
        app: Any = SimpleNamespace(engine=engine, consumer=consumer)
        self.handler = EventHandler(segmenter, self.metrics, app)
        self.partition = Partition(
            self.handler.handle,
            schema=Batches(reject=self.handler.reject, stops=(AfterwordError,)),
            producer=producer,
            tables=tables,
            deadlines={CONVERSATIONS: deadline_of, MESSAGES: None},
            clock=engine.clock,
            retry_wait_seconds=0.0,
        )
        self.next = 0

    async def hear(self, *records: Sent) -> None:
        numbered = [Sent(**{**vars(one), "offset": self.next + n}) for n, one in enumerate(records)]
        self.next += len(numbered)
        await self.partition.process(numbered)

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Return the conversation and id of each message in an episode."""
        values = self.partition.values(EPISODES)
        closed = [EpisodeClosed.model_validate_json(value or b"") for value in values]
        return [(one.conversation_id, message.id) for one in closed for message in one.messages]


async def test_message_that_fails_the_segmenter_is_dead_lettered() -> None:
    deployed = Deployed(limits())
    await deployed.hear(
        *[say(f"m{n}", BOOBY_TRAP if n == 7 else "fine", conversation_id=f"c{n % 3}") for n in range(30)],
        *[flush(f"c{n}") for n in range(3)],
    )
    assert sorted(deployed.messages) == sorted((f"c{n % 3}", f"m{n}") for n in range(30) if n != 7)
    [found] = [one for one in deployed.partition.outputs if one.topic == DEAD_LETTERS]
    letter = read_dead_letter(Sent(found.key, found.value, headers=tuple(found.headers)))
    assert (letter.error_type, letter.stage, letter.origin) == ("unforeseen", "segmenter", ("messages", 3, 7))
    assert letter.problem.startswith("ZeroDivisionError at afterword.streams.segmenter.")
    assert BOOBY_TRAP not in letter.problem
    labels = {"stage": "segmenter", "error_type": "unforeseen"}
    assert deployed.metrics.registry.get_sample_value("afterword_dead_letters_total", labels) == 1


async def test_large_flushes_become_several_transactions() -> None:
    deployed = Deployed(limits(max_episode_size=2))
    conversations = [f"c{n}" for n in range(24)]
    quiet = {"afterword": {"auto_summarize": False}}
    for name in conversations:
        await deployed.hear(*[say(f"m{n}", "x" * 400_000, conversation_id=name, metadata=quiet) for n in range(4)])
    before = len(deployed.partition.producer.tried)
    await deployed.hear(*[flush(name) for name in conversations])
    written = deployed.partition.producer.tried[before:]
    assert sum(written) > 16 * MEGABYTE
    assert max(written) < Options().max_written_bytes + 2 * MEGABYTE
    assert sorted(deployed.messages) == sorted((name, f"m{n}") for name in conversations for n in range(4))


async def test_flush_of_many_agents_becomes_several_transactions() -> None:
    deployed = Deployed(limits(scope="agent", max_episode_size=2), Producer(most_bytes=3 * MEGABYTE))
    quiet = {"afterword": {"auto_summarize": False}}
    agents = [f"a{n}" for n in range(12)]
    for agent in agents:
        await deployed.hear(*[say(f"{agent}-{n}", "x" * 500_000, agent_id=agent, metadata=quiet) for n in range(3)])
    before = len(deployed.partition.producer.transactions)
    await deployed.hear(flush())
    sizes = [sum(map(size_of, outputs)) for _, outputs in deployed.partition.producer.transactions[before:]]
    assert sum(sizes) > 16 * MEGABYTE
    assert max(sizes) < 3 * MEGABYTE
    assert sorted(deployed.messages) == sorted(("c", f"{agent}-{n}") for agent in agents for n in range(3))


@given(st.lists(st.sampled_from(["x", "y", "z", None]), max_size=15), st.integers(1, 3000))
def test_flush_in_parts_closes_what_a_whole_one_closes(agents: list[str | None], write: int) -> None:
    talk = [say(f"m{n}", agent_id=agent) for n, agent in enumerate(agents)]
    rules = limits(scope="agent", max_episode_size=3, auto_summarize=False)
    whole, parted = Chat(rules), Chat(rules)
    assert whole.process(talk).outgoing == parted.process(talk).outgoing
    given, found, done = [Sent(**{**vars(flush()), "offset": 99})], [], 0
    while not done:
        outcome = parted._committed(lambda segmenter: segmenter.process(given, NOON, ByteBudget(1 << 30, write)))
        found += outcome.outgoing
        done = outcome.done
    assert found == whole._committed(lambda segmenter: segmenter.process(given, NOON)).outgoing
    assert (parted.conversations, parted.messages) == (whole.conversations, whole.messages)


@pytest.mark.parametrize("most", [None, 3 * MEGABYTE])
async def test_large_deadlines_become_several_transactions(most: int | None) -> None:
    deployed = Deployed(limits(idle_seconds=60), Producer(most_bytes=most))
    conversations = [f"c{n}" for n in range(30)]
    for name in conversations:
        await deployed.hear(say("m", "x" * 650_000, conversation_id=name))
    before = len(deployed.partition.producer.transactions)
    deployed.now_ms += 61_000
    while True:
        try:
            if not await deployed.partition.session.tick(deployed.now_ms):
                break
        except TimeoutError:
            deployed.partition.open()
    sizes = [sum(map(size_of, outputs)) for _, outputs in deployed.partition.producer.transactions[before:]]
    assert sum(sizes) > 16 * MEGABYTE
    assert max(sizes) < (most or Options().max_written_bytes + MEGABYTE)
    assert sorted(deployed.messages) == sorted((name, "m") for name in conversations)


async def turns_during(work: Awaitable[object]) -> int:
    """Count how often the event loop runs other tasks meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await work
    task.cancel()
    return turns


async def test_large_messages_are_handled_in_interruptible_pieces() -> None:
    deployed = Deployed(limits())
    large = [say(f"m{n}", "x" * 100_000, conversation_id=f"c{n}") for n in range(40)]
    assert await turns_during(deployed.hear(*large)) >= 20  # twelve where each transaction is one piece


async def test_deadlines_are_cut_by_their_expected_output() -> None:
    deployed = Deployed(limits(idle_seconds=60))
    for n in range(75):
        await deployed.hear(say("m", "x" * 100_000, conversation_id=f"c{n}"))
    deployed.now_ms += 61_000
    turns = await turns_during(deployed.partition.session.tick(deployed.now_ms))
    assert len(deployed.messages) == 75
    assert turns >= 6  # three where all are one piece


async def test_segmenter_yields_after_each_turn() -> None:
    deployed = Deployed(limits())
    slow = [say(f"m{n}", SLOW, conversation_id=f"c{n}") for n in range(20)]
    assert await turns_during(deployed.hear(*slow)) >= 10  # four where bytes alone end a piece


def test_piece_of_short_messages_ends_at_its_read_limit() -> None:
    """With a third of the messages in each piece, a conversation's row was read and written for every message."""
    talk = [say(f"m{n}", "word " * 20, conversation_id=f"c{n % 250}") for n in range(2000)]
    done = Chat(Episodes()).process(talk, PIECE).done
    assert sum(len(record.value or b"") for record in talk[:done]) >= PIECE.read


def test_spent_budget_stops_taking_records() -> None:
    records = [say(f"m{n}") for n in range(5)]
    size = len(records[0].value or b"")
    for budget, taken in (
        (ByteBudget(size, MEGABYTE), 1),
        (ByteBudget(size + 1, MEGABYTE), 2),
        (ByteBudget(MEGABYTE, 1), 1),
    ):
        assert Chat(limits())._committed(lambda segmenter: segmenter.process(records, NOON, budget)).done == taken  # noqa: B023 – called at once


def test_spent_budget_stops_taking_deadlines() -> None:
    chat = Chat(limits(idle_seconds=60))
    chat.hear(*[say("m1", conversation_id=name) for name in "abc"])
    chat.now_ms += 61_000
    due, now_ms = chat.due(), chat.now_ms
    assert len(due) == 3
    outcome = chat._committed(lambda segmenter: segmenter.tick(due, now_ms, "messages", 3, ByteBudget(MEGABYTE, 1)))
    assert (outcome.done, outcome.episodes.total()) == (1, 1)


def test_deleted_rows_count_as_changelog_records() -> None:
    """Without that, a call would forget conversations until their keys alone filled its transaction."""
    chat = Chat(limits(forget_after_days=1))
    for name in "abc":
        chat.process([*[say(f"m{n}", conversation_id=name) for n in range(10)], flush(name)])
    chat.now_ms += 2 * 86_400_000
    due, now_ms, rows = chat.due(), chat.now_ms, len(chat.messages) // 3
    budget = ByteBudget(MEGABYTE, rows * 50)
    outcome = chat._committed(lambda segmenter: segmenter.tick(due, now_ms, "messages", 3, budget))
    assert (len(due), outcome.done) == (3, 1)


@given(st.lists(st.sampled_from("abcde"), max_size=20), st.integers(1, 400), st.integers(1, 4000))
def test_any_piece_size_gives_the_same_episodes(names: list[str], read: int, write: int) -> None:
    records = [say(f"{name}{n}", conversation_id=name) for n, name in enumerate(names)] + [flush(n) for n in "abcde"]
    whole, pieces = Chat(limits(max_episode_size=3)), Chat(limits(max_episode_size=3))
    found = []
    at = 0
    while at < len(records):
        budget = ByteBudget(read, write)
        given = [Sent(**{**vars(one), "offset": at + n}) for n, one in enumerate(records[at:])]
        outcome = pieces._committed(lambda segmenter: segmenter.process(given, NOON, budget))  # noqa: B023 – called at once
        assert outcome.done or outcome.outgoing
        found += outcome.outgoing
        at += outcome.done
    assert found == whole.process(records).outgoing
    assert (pieces.conversations, pieces.messages) == (whole.conversations, whole.messages)


def test_records_of_a_batch_are_decided_in_turn() -> None:
    fits, too_large = say("a", "x"), say("a", "ä" * 150_000, flows=["f" * 260_000])
    talk = [say(f"m{n}", f"what about the passport of number {n}?", at=n) for n in range(69)]
    broken = Sent(b"c", b"{", headers=())
    records = [fits, *talk, too_large, broken, edit("m3", content="new"), say("b", "x" * 10), flush(), delete("m1")]
    together, alone = Chat(limits()), Chat(limits())
    outcome = together.process(records)
    one_by_one = [alone.process([record]) for record in records]
    assert (outcome.changed_repeats, outcome.dead_letters.total()) == (1, 1)
    assert outcome.outgoing == [sent for one in one_by_one for sent in one.outgoing]
    assert (together.conversations, together.messages) == (alone.conversations, alone.messages)
