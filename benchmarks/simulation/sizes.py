"""Bytes and tokens of the sample conversations, as they travel and as they are stored; no server is needed."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import bson
import numpy as np
import orjson

import afterword.samples
from afterword.schemas import EpisodeClosed, MessageCreated, SummaryCreated, decode_episode, decode_input
from afterword.streams.segmenter import Segmenter
from afterword.streams.settings import Episodes, Llm
from afterword.streams.stores.documents import episode_document, message_document, row_document
from afterword.streams.stores.episodes import first_advance, stored_episode
from afterword.streams.stores.index import raw_text, summary_text
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.qdrant import payload
from afterword.streams.stores.sparse import document_vector
from afterword.streams.summarizer.pipeline import now, summary_created
from afterword.streams.summarizer.prompt import build_prompt
from afterword.streams.summarizer.providers.base import SummaryRequest
from afterword.streams.summarizer.providers.extractive import ExtractiveProvider
from afterword.streams.summarizer.rolling import next_row
from afterword.streams.tokens import count_tokens

SAMPLES = Path(afterword.samples.__file__).parent / "conversations.jsonl"
RECORD_OVERHEAD_BYTES = 30
"""Of a record in a changelog, as tests/unit/segmenter/test_state_cost.py has it."""
SPARSE_TERM_BYTES = 8
"""An index and a weight, four bytes each."""
NOON_MS = 1_767_268_800_000


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
    """A table that counts what its changelog takes."""

    written = 0

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.written += len(key) + len(value) + RECORD_OVERHEAD_BYTES
        super().__setitem__(key, value)

    def __delitem__(self, key: bytes) -> None:
        self.written += len(key) + RECORD_OVERHEAD_BYTES
        super().__delitem__(key)

    @property
    def kept(self) -> int:
        """Bytes of keys and values."""
        return sum(len(key) + len(value) for key, value in self.items())


@dataclass(frozen=True)
class Segmented:
    episodes: Sequence[EpisodeClosed]
    episode_bytes: Sequence[int]
    conversations: Changelog
    messages: Changelog


@dataclass(frozen=True)
class Stored:
    """Bytes, unless its name says otherwise; of all episodes together."""

    episodes: int = 0
    rows: int = 0
    conversations: int = 0
    announced: int = 0
    payload: int = 0
    sparse: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0


def records() -> Iterator[Record]:
    """Of the samples, each conversation with a flush at its end."""
    lines = [line for line in SAMPLES.read_bytes().splitlines() if line]
    keys = [orjson.loads(line)["conversation_id"] for line in lines]
    flushes = [orjson.dumps({"type": "conversation.flush", "conversation_id": key}) for key in dict.fromkeys(keys)]
    for offset, value in enumerate([*lines, *flushes]):
        yield Record(orjson.loads(value)["conversation_id"].encode(), value, offset)


def segmented(given: Iterable[Record]) -> Segmented:
    """By the default rules; each record is a batch of its own, which costs the changelogs most."""
    conversations, messages = Changelog(), Changelog()
    segmenter = Segmenter(Episodes(), "episodes", "dead", conversations, messages, count_tokens=count_tokens)
    sent = [out for record in given for out in segmenter.process([record], NOON_MS).outgoing]
    episodes = [decode_episode(out.key, out.value) for out in sent]
    return Segmented(episodes, [len(out.value or b"") for out in sent], conversations, messages)


async def stored(episodes: Iterable[EpisodeClosed]) -> Stored:
    """Summarised without an LLM, whose answers are about as long as the texts that this finds."""
    total: dict[str, int] = {}
    latest: dict[str, Any] = {}
    for episode in episodes:
        row = latest.get(episode.conversation_id)
        request = SummaryRequest(episode, row.content if row else "", Llm().max_output_tokens or 800)
        summary = summary_created(episode, await ExtractiveProvider().summarize(request), now())
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
    """Of the documents in `messages`."""
    total = 0
    for record in given:
        event = decode_input(record.key, record.value, record.headers, record.timestamp)
        if isinstance(event, MessageCreated):
            total += len(bson.encode(message_document(ArchivedMessage(event, record.partition, record.offset))))
    return total


def sizes() -> dict[str, float]:
    """By the names of `Parameters`."""
    given = list(records())
    done = segmented(given)
    kept = asyncio.run(stored(done.episodes))
    messages = sum(episode.message_count for episode in done.episodes)
    each, frame = np.polyfit([episode.message_count for episode in done.episodes], done.episode_bytes, 1)
    said = sum(episode.token_count for episode in done.episodes)
    episodes, conversations = len(done.episodes), len(done.conversations)
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
