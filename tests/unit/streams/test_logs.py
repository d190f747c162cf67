"""Log lines about a retried call."""

import json
import re
import subprocess
import sys

PROGRAM = """
import asyncio
from afterword.streams.errors import ProviderRateLimited
from afterword.streams.logs import configure
from afterword.streams.settings import Logs
from afterword.streams.summarizer.retrying import retrying

async def call():
    raise ProviderRateLimited(retry_after=0)

async def main():
    try:
        await retrying("summarize", call, 2, 0.1)
    except ProviderRateLimited:
        pass

configure(Logs(format="json"))
asyncio.run(main())
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)


def test_retry_is_one_warning_with_stage_and_error_type() -> None:
    [line] = map(json.loads, run(PROGRAM).stderr.splitlines())
    assert line.pop("timestamp")
    assert line.pop("wait_seconds") <= 0.1
    assert line == {
        "event": "retry_scheduled",
        "level": "warning",
        "stage": "summarize",
        "error_type": "provider_rate_limited",
        "problem": "the LLM is rate limited",
        "attempt": 1,
    }


WAITING = """
import asyncio
from opentelemetry.trace import NoOpTracer
from afterword.streams.errors import StoreUnavailable
from afterword.streams.logs import configure
from faust_eos.health import Readiness
from afterword.streams.settings import Logs
from afterword.streams.steps import StepRunner
from afterword.streams.telemetry.metrics import Metrics

failures = [StoreUnavailable(store="mongodb", problem="away")] * 3

async def step():
    if failures:
        raise failures.pop()

configure(Logs(format="json"))
steps = StepRunner(Readiness(), Metrics("none", "0"), NoOpTracer(), lambda *_: 0.0)
asyncio.run(steps.retry_until_success("find", step))
"""


def test_waiting_step_is_logged_once() -> None:
    [line] = map(json.loads, run(WAITING).stderr.splitlines())
    assert (line["event"], line["stage"], line["error_type"]) == ("step_failed", "find", "store_unavailable")


HOSTILE = """
import logging
import structlog
from afterword.streams.logs import configure
from afterword.streams.settings import Logs

configure(Logs(format="console"))
forged = "c1\\n2026-01-05 [info] all_is_well\\x1b[2J\\x9b2J\\u202e"
structlog.get_logger().warning("episode_rejected", conversation_id=forged, ids=[forged])
logging.getLogger("library").warning("of %s", forged)
try:
    raise ValueError(forged)
except ValueError:
    structlog.get_logger().exception("step_failed", conversation_id="c1")
"""


def test_id_on_a_console_forges_no_line_or_command() -> None:
    done = run(HOSTILE)
    assert "\x1b[2J" not in done.stderr
    assert not set(done.stderr) & {"\x9b", "\u202e"}
    plain = re.sub(r"\x1b\[\d*m", "", done.stderr)
    assert not [line for line in plain.splitlines() if line.startswith("2026-01-05 [info]")]
    assert [word for word in ("episode_rejected", "of c1", "step_failed", "ValueError") if word not in plain] == []
    assert plain.count("all_is_well") == 4


UNREAD = """
import asyncio
from aiokafka.errors import ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder, MessageBatch
from aiokafka.structs import TopicPartition
from afterword.streams.logs import configure
from afterword.streams.settings import Logs

async def main():
    builder = BatchBuilder(1_000, 0, is_transactional=True)
    batch = MessageBatch(TopicPartition("t", 0), builder, 30.0, 0.0)
    sent = batch.append(b"key", b"value", 0)
    batch.failure(ProducerFenced())
    print(repr(sent.exception()))
    asyncio.get_running_loop().create_future().set_exception(ValueError("ours"))

configure(Logs(format="json"))
asyncio.run(main())
"""


def test_delivery_error_is_logged_once_by_its_sender() -> None:
    done = run(UNREAD)
    assert done.stdout.startswith("ProducerFenced")
    [line] = map(json.loads, done.stderr.splitlines())
    assert "ValueError: ours" in line["exception"]
