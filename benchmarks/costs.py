"""Measured inputs of the scaling formulas: bytes and tokens of the sample conversations, and the cost of a transaction.

python -m benchmarks.costs
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bson
import numpy as np
import orjson
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

import afterword.samples
from afterword.embedded import EmbeddedStack
from afterword.schemas import EpisodeClosed, MessageCreated, SummaryCreated, decode_episode, decode_input
from afterword.streams.runtime.batch import Output
from afterword.streams.runtime.changelog import Bookmark
from afterword.streams.runtime.options import Clients, Options
from afterword.streams.runtime.transaction import TransactionalProducer
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.settings import Episodes, Llm
from afterword.streams.stores.documents import episode_document, message_document, row_document
from afterword.streams.stores.episodes import first_advance, stored_episode
from afterword.streams.stores.index import payload, raw_text, summary_text
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.sparse import document_vector
from afterword.streams.summarizer.prompt import build_prompt
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.revisions import now, summary_created
from afterword.streams.summarizer.rolling import next_row
from afterword.streams.summarizer.summary import SummaryRequest
from afterword.streams.tokens import count_tokens

SAMPLES = Path(afterword.samples.__file__).parent / "conversations.jsonl"
RECORD_OVERHEAD_BYTES = 30
"""Overhead of a changelog record, as in tests/unit/segmenter/test_state_cost.py."""
SPARSE_TERM_BYTES = 8
"""An index and a weight, four bytes each."""
NOON_MS = 1_767_268_800_000
COUNT = 400
WARM_UP = 50
GROUP = "costs"
SOURCE, EPISODES = TopicPartition("source", 0), TopicPartition("episodes", 0)
CHANGELOGS = (TopicPartition("first-changelog", 0), TopicPartition("second-changelog", 0))


class Record(NamedTuple):
    """A record of `messages`, with aiokafka's names."""

    key: bytes
    value: bytes
    offset: int
    timestamp: int = NOON_MS
    topic: str = "messages"
    partition: int = 0
    headers: tuple[tuple[str, bytes], ...] = ()


class Changelog(dict[bytes, bytes]):
    """A table that counts the bytes of its changelog."""

    written = 0

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.written += len(key) + len(value) + RECORD_OVERHEAD_BYTES
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        self.written += len(key) + RECORD_OVERHEAD_BYTES
        super().__delitem__(key)

    @property
    def kept(self) -> int:
        """Bytes of the keys and values that are left."""
        return sum(len(key) + len(value) for key, value in self.items())


@dataclass(frozen=True)
class Segmented:
    episodes: Sequence[EpisodeClosed]
    episode_bytes: Sequence[int]
    conversations: Changelog
    messages: Changelog


def forgotten(done: Segmented) -> tuple[int, int]:
    """Forget all conversations; return the bytes of what is left, and those that the changelogs took for it."""
    conversations, messages = Changelog(done.conversations), Changelog(done.messages)
    segmenter = Segmenter(Episodes(), "episodes", "dead", conversations, messages, count_tokens=count_tokens)
    segmenter.tick(list(conversations), NOON_MS + Episodes().forget_after_ms, "messages", 0)
    return conversations.kept + messages.kept, conversations.written + messages.written


@dataclass(frozen=True)
class Stored:
    """Bytes of all episodes together, unless a name says otherwise."""

    episodes: int = 0
    rows: int = 0
    conversations: int = 0
    announced: int = 0
    payload: int = 0
    sparse: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0


def records() -> Iterator[Record]:
    """Messages of the samples, with a flush at the end of each conversation."""
    lines = [line for line in SAMPLES.read_bytes().splitlines() if line]
    keys = [orjson.loads(line)["conversation_id"] for line in lines]
    flushes = [orjson.dumps({"type": "conversation.flush", "conversation_id": key}) for key in dict.fromkeys(keys)]
    for offset, value in enumerate([*lines, *flushes]):
        yield Record(orjson.loads(value)["conversation_id"].encode(), value, offset)


def segmented(given: Iterable[Record]) -> Segmented:
    """Segment by the default rules, one record per batch: the worst case for the changelogs."""
    conversations, messages = Changelog(), Changelog()
    segmenter = Segmenter(Episodes(), "episodes", "dead", conversations, messages, count_tokens=count_tokens)
    sent = [out for record in given for out in segmenter.process([record], NOON_MS).outgoing]
    episodes = [decode_episode(out.key, out.value) for out in sent]
    return Segmented(episodes, [len(out.value or b"") for out in sent], conversations, messages)


async def stored(episodes: Iterable[EpisodeClosed]) -> Stored:
    """Summarize extractively; an LLM's answers are about as long."""
    total: dict[str, int] = {}
    latest: dict[str, Any] = {}
    for episode in episodes:
        row = latest.get(episode.conversation_id)
        request = SummaryRequest(episode, row.content if row else "", Llm().max_output_tokens or 800)
        made = summary_created(episode, await ExtractiveProvider().summarize(request), now())
        summary = made.model_copy(update={"rolling_ordinals": (episode.ordinal,)})
        latest[episode.conversation_id] = next_row(row, summary, 800)
        sizes = _sizes(request, summary, latest[episode.conversation_id])
        total = {name: total.get(name, 0) + size for name, size in sizes.items()}
    total["rows"] = sum(len(bson.encode(row_document(row))) for row in latest.values())
    return Stored(**total)


def _sizes(request: SummaryRequest, summary: SummaryCreated, row: Any) -> dict[str, int]:
    episode = request.episode
    prompt = build_prompt(episode, request.previous_rolling, request.rolling_tokens)
    text = raw_text(message.content for message in episode.messages)
    terms = [len(document_vector(words).indices) for words in (summary_text(summary), text)]
    return {
        "episodes": len(bson.encode(episode_document(stored_episode(episode, summary)))),
        "announced": len(summary.to_json()),
        "payload": len(orjson.dumps(payload(summary))),
        "sparse": sum(terms) * SPARSE_TERM_BYTES,
        "prompt_tokens": sum(count_tokens(part["content"]) for part in prompt),
        "answer_tokens": count_tokens(summary_text(summary)) + row.token_count,
        "conversations": len(bson.encode(vars(first_advance(summary)))) if episode.ordinal == 1 else 0,
    }


def archived_bytes(given: Iterable[Record]) -> int:
    """Bytes of the documents in `messages`."""
    total = 0
    for record in given:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        if isinstance(event, MessageCreated):
            total += len(bson.encode(message_document(ArchivedMessage(event, record.partition, record.offset))))
    return total


def sizes() -> dict[str, float]:
    """Sizes and tokens, by the names of `scaling.Parameters`."""
    given = list(records())
    done = segmented(given)
    kept = asyncio.run(stored(done.episodes))
    messages = sum(episode.message_count for episode in done.episodes)
    each, frame = np.polyfit([episode.message_count for episode in done.episodes], done.episode_bytes, 1)
    said = sum(episode.token_count for episode in done.episodes)
    episodes, conversations = len(done.episodes), len(done.conversations)
    left, forgetting = forgotten(done)
    return {
        "message_bytes": sum(len(record.value) for record in given[:messages]) / messages,
        "messages_per_episode": messages / episodes,
        "messages_per_conversation": messages / conversations,
        "episode_frame_bytes": float(frame),
        "episode_bytes_per_message": float(each),
        "changelog_bytes_per_message": (done.conversations.written + done.messages.written) / messages,
        "state_bytes_per_conversation": done.conversations.kept / conversations,
        "state_bytes_per_message": done.messages.kept / messages,
        "state_rows_per_message": len(done.messages) / messages,
        "forgotten_bytes_per_conversation": left / conversations,
        "forgetting_bytes_per_message": forgetting / messages,
        "summary_record_bytes": kept.announced / episodes,
        "mongo_message_bytes": archived_bytes(given) / messages,
        "mongo_episode_bytes": kept.episodes / episodes,
        "mongo_conversation_bytes": (kept.rows + kept.conversations) / conversations,
        "qdrant_payload_bytes": kept.payload / episodes,
        "qdrant_sparse_bytes": kept.sparse / episodes,
        "prompt_frame_tokens": (kept.prompt_tokens - said) / episodes,
        "tokens_per_message": said / messages,
        "answer_tokens": kept.answer_tokens / episodes,
    }


async def transactions() -> dict[str, float]:
    """Seconds by the names of `scaling.Parameters`. Each transaction has one output and a row in two changelogs."""
    with tempfile.TemporaryDirectory(prefix="afterword-costs-") as directory:
        async with EmbeddedStack(Path(directory) / "stack") as stack:
            await _create(stack.bootstrap_servers)
            seconds, core = await _commits(stack.bootstrap_servers)
    waits = [whole - busy for whole, busy in zip(seconds, core, strict=True)]
    return {
        "transaction_core_seconds": statistics.fmean(core),
        "commit_seconds": statistics.median(waits),
    }


async def _create(bootstrap: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(place.topic, 1, 1) for place in (SOURCE, EPISODES, *CHANGELOGS)])
    finally:
        await admin.close()


async def _commits(bootstrap: str) -> tuple[list[float], list[float]]:
    """Wall and CPU seconds of each commit."""
    producer = TransactionalProducer("costs", Clients({"bootstrap_servers": bootstrap}), Options())
    await producer.open(60.0)
    try:
        found = [await _commit(producer, number) for number in range(WARM_UP + COUNT)]
    finally:
        await producer.close()
    return [whole for whole, _ in found[WARM_UP:]], [core for _, core in found[WARM_UP:]]


async def _commit(producer: TransactionalProducer, number: int) -> tuple[float, float]:
    began, core = time.perf_counter(), time.process_time()
    output = Output(EPISODES.topic, b"key", b"x" * 1000, None, None, [])
    rows = {place: [(b"key", b"x" * 300)] for place in CHANGELOGS}
    bookmark = Bookmark(number, "lineage", [place.topic for place in CHANGELOGS])
    await producer.commit([output], rows, bookmark, SOURCE, GROUP)
    return time.perf_counter() - began, time.process_time() - core


if __name__ == "__main__":
    for name, value in {**sizes(), **asyncio.run(transactions())}.items():
        print(f"{name} = {value:.6g}")
