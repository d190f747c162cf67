"""Records that clients can send but should not, each with its expected outcome. One seed gives the same records."""

import json
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from afterword.schemas.records import CE_TYPE, CONTENT_TYPE, REPLACED, RESERVED_PREFIX, STRUCTURED_JSON
from tests.nasty_texts import IDS, RUNS, mixed, run
from tests.raw_batches import COMPRESSORS, packed, record

ACCEPTED = "accepted"
"""Fate of a record without a dead letter: a message that ends in an episode, or a documented no-op."""
REFUSED = "refused by the broker"
COVERED = "covered"
"""Fate of a record in the unreadable rest of a batch: the dead letter before it names its offset."""
JSON = ("invalid_json", "schema_violation")
NOW_MS = 1_767_600_000_000
TEXT_BYTES = (1_000, 20_000, 100_000, 300_000)
NESTED = b"[" * 1020 + b"]" * 1020
"""Deepest nesting that orjson reads."""
MANY_RECORDS = 5_000
HOUR_MS = 3_600_000

Message = dict[str, Any]
Fates = tuple[str, ...]


@dataclass(frozen=True)
class Attack:
    """One record, or a raw batch in which each record has its own fate."""

    conversation: str
    """Decides the partition, even for a raw batch."""
    value: bytes | None
    fates: Fates
    """The allowed fates: error types of its dead letter, or the words above."""
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    timestamp_ms: int | None = None
    batch: bytes | None = None
    fates_in_batch: Sequence[Fates] = ()


def message(conversation: str, number: int = 0, **fields: Any) -> Message:
    given = {"id": f"m{number}", "conversation_id": conversation, "user_id": "mallory", "role": "user"}
    return {**given, "content": "I would like to change my booking to Monday.", **fields}


def one(conversation: str, value: Message | bytes | None, *fates: str, **more: Any) -> Attack:
    raw = orjson.dumps(value) if isinstance(value, dict) else value
    return Attack(conversation, raw, fates, **{"key": conversation.encode(), **more})


def flush(conversation: str, *fates: str, **fields: Any) -> Attack:
    event = {"type": "conversation.flush", "conversation_id": conversation, **fields}
    return one(conversation, event, *(fates or (ACCEPTED,)))


def spliced(conversation: str, member: bytes, number: int = 0) -> bytes:
    """Return a message with one more member, given as bytes."""
    return orjson.dumps(message(conversation, number))[:-1] + b"," + member + b"}"


# -- bytes


def strange_bytes(name: str, chance: random.Random) -> list[Attack]:
    plain = orjson.dumps(message(name))
    levels = chance.choice((33, 120, 300, 2_000, 20_000, 100_000))
    deep = b'{"a":' * levels + b"1" + b"}" * levels
    number = chance.choice((b"9" * 400, b"-" + b"9" * 30, b"1e999", b"-1e999", b"18446744073709551616"))
    attacks = [
        one(name, chance.randbytes(chance.randint(0, 2000)), *JSON),
        one(name, plain[: chance.randrange(1, len(plain))], "invalid_json"),
        one(name, b"\xef\xbb\xbf" + orjson.dumps(message(name, 5)), ACCEPTED),
        one(name, plain.replace(b"booking", b"\xff\xc0\x80"), "invalid_json"),
        one(name, orjson.dumps(message(name, 6)).replace(b"booking", b"\\ud800"), ACCEPTED),
        one(name, plain.replace(b"booking", b"\0"), "invalid_json"),
        one(name, b"[" * levels, *JSON),
        one(name, b'"type"' + b"[" * levels, *JSON),
        one(name, spliced(name, b'"metadata":' + deep), *JSON),
        one(name, spliced(name, b'"metadata":{"a\\u0000b":1}'), "schema_violation"),
        one(name, spliced(name, b'"metadata":{"a":' + chance.choice((b"NaN", b"-Infinity", b"1e400")) + b"}"), *JSON),
        one(name, spliced(name, b'"sentiment":' + number), *JSON),
        one(name, spliced(name, b'"sent_at":' + number), *JSON),
        one(name, spliced(name, b'"metadata":{"n":' + number + b"}", 1), ACCEPTED, *JSON),
        one(name, spliced(name, b'"metadata":{"n":NaN,"m":-Infinity}', 2), ACCEPTED, *JSON),
        one(name, spliced(name, b'"id":"twice"'), ACCEPTED),
        one(name, spliced(name, b'"conversation_id":"another"'), "key_mismatch"),
        one(name, spliced(name, b'"type":' + NESTED), "unknown_type", *JSON),
        one(name, spliced(name, b'"type":"message.created","type":7'), "unknown_type"),
        one(name, spliced(name, b'"flows":[' + b'"x",' * 20_000 + b'"x"]', 3), ACCEPTED),
        one(name, spliced(name, b'"unknown":{' + b'"k":1,' * 20_000 + b'"k":2}', 4), ACCEPTED),
        one(name, {**message(name), "content": "x" * chance.randint(700_000, 900_000)}, "too_large"),
        one(name, {**message(name), chance.choice(("id", "user_id", "content", "role")): None}, "schema_violation"),
        one(name, {**message(name), chance.choice(("id", "user_id")): "x" * 100_000}, "schema_violation"),
        one(name, {**message(name), "type": chance.choice(("episode.closed", 7, None, {}))}, "unknown_type"),
        one(name, None, "empty_value"),
        one(name, b"", "invalid_json"),
        one(name, message(name), "missing_key", key=None),
        one(name, message(name), "key_mismatch", key=chance.choice((b"", b"\xff\xfe", name.encode() + b" "))),
    ]
    return [*attacks, flush(name)]


def flipped_bits(name: str, chance: random.Random) -> list[Attack]:
    """Messages with a few changed bits, which may have almost any fate, but exactly one."""
    attacks = []
    for number in range(30):
        raw = bytearray(orjson.dumps(message(name, number)))
        for _ in range(chance.randint(1, 4)):
            raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        attacks.append(one(name, bytes(raw), ACCEPTED, *JSON, "key_mismatch", "unknown_type", "tenant_mismatch"))
    return [*attacks, flush(name)]


# -- headers


def strange_headers(name: str, chance: random.Random) -> list[Attack]:
    forged = {
        RESERVED_PREFIX + "dlq.offset": chance.choice((b"0", b"9" * 5_000, b"-1")),
        RESERVED_PREFIX + "dlq.action": b"discarded",
        RESERVED_PREFIX + "errors.offset": b"9" * 5_000,
        RESERVED_PREFIX + "errors.type": b"\x1b]0;forged\x07\nclean: nothing is lost",
        RESERVED_PREFIX + "errors.topic": b"messages\n",
    }
    structured = (CONTENT_TYPE, STRUCTURED_JSON.encode())
    huge = [(f"h{n}", bytes(1_000)) for n in range(chance.choice((50, 500)))]
    traces = [("traceparent", chance.choice((b"\xff" * 55, b"00-" + b"0" * 52, b"x" * 20_000)))]
    traces += [("tracestate", b"a=b," * 5_000), ("baggage", b"k=v;" * 5_000)]
    names = [("", b""), ("n" * 30_000, b""), ("\x1b[2J\n", b"\xff"), *((f"{n}", b"") for n in range(2_000))]
    replaced = chance.choice((b"", b"[]", NESTED, b"\x1b[2Jclean: nothing is lost"))
    bad = record(1, name.encode(), orjson.dumps(message(name, 9)), [b"\xff\xfe", chance.randbytes(3) + b"\xff"])
    good = [record(delta, name.encode(), orjson.dumps(message(name, delta))) for delta in (0, 2)]
    body = good[0] + bad + good[1]
    named = packed(body, codec := chance.choice(list(COMPRESSORS)), 3, COMPRESSORS[codec], base=0)
    return [
        one(name, message(name, 20), ACCEPTED, headers=list(forged.items())),
        one(name, b"not JSON", "invalid_json", headers=list(forged.items())),
        one(name, message(name, 21), ACCEPTED, headers=huge),
        one(name, b"not JSON", "invalid_json", headers=huge),
        one(name, message(name, 22), ACCEPTED, headers=traces),
        one(name, message(name, 23), ACCEPTED, headers=names),
        one(name, b"not JSON", "invalid_json", headers=names),
        one(name, message(name, 24), ACCEPTED, headers=[(REPLACED, replaced)]),
        one(name, b"not JSON", "invalid_json", headers=[(REPLACED, replaced)]),
        one(name, message(name), "unknown_type", headers=[(CE_TYPE, chance.choice((b"\xff", b"x" * 9_000, b"\n")))]),
        one(name, message(name), "schema_violation", headers=[structured]),
        one(name, b'{"type":' + NESTED + b',"data":{}}', "unknown_type", headers=[structured]),
        one(name, b'{"data":{"a":' + NESTED + b"}}", "schema_violation", headers=[structured]),
        Attack(name, None, (), batch=named, fates_in_batch=[(ACCEPTED,), ("invalid_header",), (ACCEPTED,)]),
        flush(name),
    ]


# -- times

TIMES = (
    ("0001-01-01T00:00:00Z", ACCEPTED),
    ("9999-12-31T23:59:59.999999Z", ACCEPTED),
    ("0001-01-01T00:00:00+23:59", "schema_violation"),
    ("9999-12-31T23:59:59-23:59", "schema_violation"),
    ("2026-02-30T00:00:00Z", "schema_violation"),
    ("2026-01-01", "schema_violation"),
    ("yesterday", "schema_violation"),
    ("-1", "schema_violation"),
    ("2026-01-01T00:00:00", "schema_violation"),
    ("2026-01-01T00:00:00.123456789Z", ACCEPTED),
    ("2" * 10_000, "schema_violation"),
)
STAMPS = (0, 1, NOW_MS, 2**31, 2**41, 2**45, 253_402_300_799_999, 253_402_300_800_000, 2**61)


def strange_times(name: str, chance: random.Random) -> list[Attack]:
    attacks = [one(name, message(name, n, sent_at=said), fate) for n, (said, fate) in enumerate(TIMES)]
    for n, stamp in enumerate(STAMPS, 100):
        fate = ACCEPTED if stamp < 253_402_300_800_000 else "schema_violation"
        attacks.append(one(name, message(name, n), fate, REFUSED, timestamp_ms=stamp))
        attacks.append(
            one(name, message(name, n + 100, sent_at="2026-01-01T00:00:00Z"), ACCEPTED, REFUSED, timestamp_ms=stamp)
        )
    for n in range(300, 320):  # one speaker's clock is ahead and jumps
        stamp = NOW_MS + n * 1_000 + (n % 2) * chance.choice((310_000, HOUR_MS, -HOUR_MS, 10**12))
        role = ("user", "assistant")[n % 2]
        attacks.append(one(name, message(name, n, role=role), ACCEPTED, REFUSED, timestamp_ms=stamp))
    chance.shuffle(attacks)
    return [*attacks, flush(name)]


# -- batches


def raw(name: str, made: bytes, *fates: Fates) -> Attack:
    return Attack(name, None, (), batch=made, fates_in_batch=fates)


def shapes(name: str, chance: random.Random) -> list[Attack]:
    """Many records, some duplicate or empty, and batches with wrong counts."""
    key = name.encode()
    same = orjson.dumps(message(name, 0))
    codec = chance.choice(list(COMPRESSORS))
    repeated = b"".join(record(delta, key, same) for delta in range(MANY_RECORDS))
    empty = b"".join(record(delta, b"", b"") for delta in range(500))
    payload = b"".join(record(delta, key, orjson.dumps(message(name, 10 + delta))) for delta in range(3))
    wrong = (REFUSED, ACCEPTED, "undecodable_batch", *JSON, COVERED)
    counts = (1, 2, 5, 1000)
    miscounted = [packed(payload, codec, count, COMPRESSORS[codec], base=0) for count in counts]
    backwards = b"".join(record(delta, key, same) for delta in (2, 1, 0))
    ahead = b"".join(record(delta, key, same) for delta in (0, 1, 18))
    endless = struct.pack(">b", 0x7E) * 30
    return [
        raw(name, packed(repeated, codec, MANY_RECORDS, COMPRESSORS[codec], base=0), *[(ACCEPTED,)] * MANY_RECORDS),
        raw(name, packed(empty, codec, 500, COMPRESSORS[codec], base=0), *[("invalid_json",)] * 500),
        *(raw(name, made, *[wrong] * count) for count, made in zip(counts, miscounted, strict=True)),
        raw(name, packed(backwards, codec, 3, COMPRESSORS[codec], base=0), *[wrong] * 3),
        raw(name, packed(ahead, "none", 3, bytes, base=0), (ACCEPTED,), (ACCEPTED,), ("undecodable_batch",)),
        raw(name, packed(endless, codec, 3, COMPRESSORS[codec], base=0), *[wrong] * 3),
        flush(name),
    ]


# -- texts, overrides


def strange_texts(name: str, chance: random.Random) -> list[Attack]:
    """Texts that are hard for patterns and normalization, and ids that look like code, paths or queries."""
    attacks = []
    for number in range(8):
        length = chance.choice(TEXT_BYTES)
        text = mixed(length) if chance.random() < 0.2 else run(chance.choice(RUNS), length)
        text = text.encode(errors="ignore").decode()[: 600_000 // 6]
        role = ("user", "assistant", "tool")[number % 3]
        attacks.append(one(name, message(name, number, content=text, role=role), ACCEPTED, "too_large"))
    attacks.append(flush(name))
    for at, said in enumerate(IDS):
        strange = f"{said[:200]}~{name}"
        fields = {
            "id": said,
            "user_id": said,
            "agent_id": said,
            "flows": [said],
            "metadata": {said.replace("\0", ""): said},
        }
        attacks.append(one(strange, message(strange, at, **fields), ACCEPTED))
        attacks.append(flush(strange))
    return attacks


OVERRIDES: tuple[tuple[Any, Fates], ...] = (
    ({"idle_seconds": 1e12}, ("invalid_override",)),
    ({"idle_seconds": 1e308}, ("invalid_override",)),
    ({"idle_seconds": -1}, ("invalid_override",)),
    ({"idle_seconds": "300"}, ("invalid_override",)),
    ({"idle_seconds": 0}, ("invalid_override",)),
    ({"auto_summarize": False, "idle_seconds": 2_592_000}, (ACCEPTED,)),
    ({"auto_summarize": "false"}, ("invalid_override",)),
    ({"min_episode_size": -5}, ("invalid_override",)),
    ({"max_episode_size": 10**9}, ("invalid_override",)),
    ({"max_episode_tokens": 10**18}, (ACCEPTED,)),
    ({"trigger": 1}, (ACCEPTED,)),
    ({"trigger": 10**30}, ("invalid_override", *JSON)),
    ({"trigger": {"any": []}}, ("invalid_override",)),
    ({"trigger": "high_frequency"}, (ACCEPTED,)),
    ({"trigger": "[" * 500}, ("invalid_override",)),
    ({"trigger": {"turns": 1_000_000}}, (ACCEPTED,)),
    ({"dedupe_window": 1}, ("invalid_override",)),
    ({"x" * 5_000: 1}, ("invalid_override",)),
    ("text", ("invalid_override",)),
    ([1], ("invalid_override",)),
    ({}, (ACCEPTED,)),
    (None, (ACCEPTED,)),
)


def overrides(name: str, chance: random.Random) -> list[Attack]:
    """A conversation whose overrides change with each message, and one that turns summaries off."""
    attacks = []
    for number, (given, fates) in enumerate(chance.sample(OVERRIDES, len(OVERRIDES))):
        metadata = json.dumps({"afterword": given}).encode()  # orjson writes no integers beyond 64 bits
        attacks.append(one(name, spliced(name, b'"metadata":' + metadata, number), *fates))
    endless = f"{name}-endless"
    never = {"afterword": {"auto_summarize": False, "idle_seconds": 2_592_000, "max_episode_size": 1000}}
    many = range(chance.choice((200, 1_200)))
    attacks += [one(endless, message(endless, number, metadata=never), ACCEPTED) for number in many]
    return [*attacks, flush(name), flush(endless)]
