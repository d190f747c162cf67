"""The input: many conversations at once, each message about 300 bytes of JSON."""

import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from itertools import count as count_from

import orjson

from afterword.schemas import MessageCreated
from afterword.schemas.base import rfc3339
from benchmarks.recall.corpora import dialogue_rows
from tests.dialogues import expand

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SENTENCE = (
    "the order arrived late and the customer asks for a refund of the delivery fee because the driver called twice but "
    "nobody answered please check the tracking number again before Friday thanks for your help with this ticket today"
)
WORDS = SENTENCE.split()
MESSAGE_BYTES = 300


def messages(count: int, conversations: int, seed: int = 1) -> Iterator[tuple[bytes, bytes]]:
    """Key and value. Every tenth message or so begins a new topic."""
    chance = random.Random(seed)
    for number in range(count):
        conversation = f"conversation-{chance.randrange(conversations)}"
        message = {
            "id": f"m-{number}",
            "conversation_id": conversation,
            "user_id": "u-1",
            "role": chance.choice(["user", "assistant"]),
            "content": " ".join(chance.choices(WORDS, k=25)),
            "sent_at": rfc3339(BEGIN + timedelta(milliseconds=number)),
            "is_continuation": chance.random() > 0.1,
        }
        yield conversation.encode(), orjson.dumps(message)


def dialogues(count: int, conversations: int, seed: int = 1, *, flags: bool = True) -> Iterator[tuple[bytes, bytes]]:
    """Key and value: what people said, so many conversations at once, each with one dialogue after the other.

    400 dialogues of SuperDialseg, which tell where their topics shift, if `flags`.
    """
    told = [expand(row["id"], row["dialogue"]) for row in dialogue_rows()]
    chance, turns = random.Random(seed), [_one_after_the_other(told, first) for first in range(conversations)]
    for number in range(count):
        at = chance.randrange(conversations)
        turn, conversation = next(turns[at]), f"conversation-{at}"
        message = {
            "id": f"m-{number}",
            "conversation_id": conversation,
            "user_id": f"user-{at}",
            "role": turn.role,
            "content": turn.content,
            "sent_at": rfc3339(BEGIN + timedelta(milliseconds=number)),
            "is_continuation": bool(turn.is_continuation) if flags else None,
        }
        yield conversation.encode(), orjson.dumps(message)


def _one_after_the_other(told: Sequence[Sequence[MessageCreated]], first: int) -> Iterator[MessageCreated]:
    return chain.from_iterable(told[at % len(told)] for at in count_from(first))


def amounts(count: int, keys: int, seed: int = 1) -> Iterator[tuple[bytes, bytes]]:
    """Key and value: messages of 300 bytes for a counter, each with an `amount` that it adds."""
    chance = random.Random(seed)
    text = " ".join(chance.choices(WORDS, k=60))
    for number in range(count):
        key = f"key-{chance.randrange(keys)}"
        message = {"id": number, "key": key, "amount": number % 9 + 1, "text": ""}
        message["text"] = text[: MESSAGE_BYTES - len(orjson.dumps(message))]
        yield key.encode(), orjson.dumps(message)
