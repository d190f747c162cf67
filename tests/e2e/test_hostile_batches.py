"""Batches that a broker accepts and that would stop or starve a worker, among real dialogues."""

import asyncio
from pathlib import Path

import orjson
import pytest
import zstandard

from afterword.local.dev import ROLES
from tests import raw_batches
from tests.e2e.deployment import Deployment
from tests.raw_batches import COMPRESSORS, packed, record

pytestmark = pytest.mark.nightly

MOST_MEGABYTES = 700
PARTITIONS = 4
MANY = 30


def message(conversation: str, number: int, content: str = "hello") -> bytes:
    fields = {"id": f"m{number}", "conversation_id": conversation, "user_id": "u", "role": "user", "content": content}
    return orjson.dumps(fields)


def hostile(conversation: str) -> list[bytes]:
    """Three records of which the second has a bad header name, one of 3 MB, and one of 256 MB in 8 kB."""
    key = conversation.encode()
    good = [record(delta, key, message(conversation, delta)) for delta in (0, 2)]
    bad = record(1, key, message(conversation, 1), [b"\xff\xfe"])
    named = packed(good[0] + bad + good[1], "none", 3, COMPRESSORS["none"], base=0)
    oversize = packed(record(0, key, bytes(3_000_000)), "gzip", 1, COMPRESSORS["gzip"], base=0)
    bomb = packed(record(0, key, bytes(2**28)), "zstd", 1, COMPRESSORS["zstd"], base=0)
    return [named, oversize, bomb]


def many(conversation: str, number: int) -> bytes:
    """A batch of legal messages of 600 kB each, which was never in memory as a whole."""
    stream = zstandard.ZstdCompressor().compressobj()
    key, text = conversation.encode(), "word " * 120_000
    records = (record(delta, key, message(conversation, 100 + delta, text)) for delta in range(number))
    body = b"".join(map(stream.compress, records)) + stream.flush()
    return packed(b"", "zstd", number, lambda _: body, base=0)


def peak_megabytes(deployment: Deployment) -> int:
    found = []
    for name in ROLES:
        status = Path(f"/proc/{deployment.workers[name].pid}/status").read_text().splitlines()
        found += [int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:")]
    return max(found)


async def test_bombs_oversize_records_and_bad_header_names_are_dead_letters_and_nothing_stops(
    deployment: Deployment, dialogues: list[bytes]
) -> None:
    for role in ROLES:
        deployment.start(role)
    servers, topic = deployment.settings.kafka.bootstrap_servers, deployment.settings.kafka.messages_topic
    half = len(dialogues) // 2
    produced = [await deployment.produce(dialogues[:half])]
    for partition in range(PARTITIONS):
        await raw_batches.produce(servers, topic, partition, *hostile(f"hostile-{partition}"))
    await raw_batches.produce(servers, topic, 0, many("hostile-0", MANY))
    produced.append(await deployment.produce(dialogues[half:]))
    report = await deployment.audit()
    assert report.clean, report.lines()
    assert report.messages["dead_lettered"] == 3 * PARTITIONS
    assert report.messages["archived"] == sum(one.messages for one in produced) + 2 * PARTITIONS + MANY
    assert await asyncio.to_thread(peak_megabytes, deployment) < MOST_MEGABYTES
    assert {name: await deployment.stop(name) for name in ROLES} == dict.fromkeys(ROLES, 0)
