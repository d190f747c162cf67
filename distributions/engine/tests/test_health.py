"""Health, lag, stalls and metrics of a worker."""

import asyncio
import resource
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from faust_eos.app import App
from faust_eos.health import BROKER, GROUP, HealthServer, Mark, Readiness, Watch, remember_stall, stalls_before
from faust_eos.metrics import Backlog, EngineMetrics, PartitionStatus, Work
from faust_eos.options import Options, return_freed_memory


@pytest.fixture
def health() -> Readiness:
    return Readiness("partitions", "llm")


@pytest.fixture
async def client(health: Readiness) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        HealthServer(health, "127.0.0.1", 0) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session,
    ):
        yield session


async def readiness(client: aiohttp.ClientSession) -> tuple[int, dict[str, object]]:
    async with client.get("/readyz") as answer:
        return answer.status, await answer.json()


async def test_worker_is_ready_once_every_condition_holds(client, health):
    status, body = await readiness(client)
    assert (status, body) == (503, {"status": "not_ready", "reasons": {"partitions": "starting", "llm": "starting"}})
    health.ready("partitions")
    assert (await readiness(client))[0] == 503
    health.ready("llm")
    assert await readiness(client) == (200, {"status": "ready"})


async def test_lost_readiness_has_a_reason_and_comes_back(client, health):
    health.ready("partitions")
    health.not_ready("llm", "provider_misconfigured")
    assert await readiness(client) == (503, {"status": "not_ready", "reasons": {"llm": "provider_misconfigured"}})
    health.ready("llm")
    assert (await readiness(client))[0] == 200


async def test_worker_without_conditions_is_ready():
    assert Readiness().reasons == {}


async def test_liveness_does_not_depend_on_readiness(client):
    async with client.get("/livez") as answer:
        assert answer.status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"])
async def test_health_server_answers_only_get(client, method):
    async with client.request(method, "/readyz") as answer:
        assert answer.status == 405


async def test_unknown_health_path_is_not_found(client):
    async with client.get("/") as answer:
        assert answer.status == 404


@pytest.fixture
async def server(health: Readiness) -> AsyncIterator[HealthServer]:
    async with HealthServer(health, "127.0.0.1", 0) as started:
        yield started


async def test_failing_health_view_is_logged(health: Readiness, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_: web.Request) -> web.Response:
        raise LookupError("what it was")

    async with (
        HealthServer(health, "127.0.0.1", 0, {"/view": broken}) as server,
        aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as client,
        client.get("/view") as answer,
    ):
        assert answer.status == 500
    assert "what it was" in caplog.text


async def test_health_server_is_unreachable_from_other_addresses(server: HealthServer) -> None:
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.2", server.port)


async def test_port_is_free_again_after_the_stop(health):
    async with HealthServer(health, "127.0.0.1", 0) as server:
        port = server.port
    with socket.create_server(("127.0.0.1", port)):
        pass


async def test_port_in_use_is_an_error_leaving_nothing_open(health):
    async with HealthServer(health, "127.0.0.1", 0) as first:
        with pytest.raises(OSError, match="address already in use"):
            await HealthServer(health, "127.0.0.1", first.port).__aenter__()


T = 1_000_000
"""Milliseconds since 1970."""


def test_nothing_unread_and_nothing_in_flight_is_no_lag() -> None:
    assert Backlog().look(Work(9, None, T - 5000), position=10, end=10, now_ms=T) == (0, 0.0)


def test_record_in_flight_is_as_old_as_its_timestamp() -> None:
    work = Work(4, in_hand_ms=T - 2500)
    assert Backlog().look(work, position=10, end=10, now_ms=T) == (6, 2.5)


def test_unread_records_are_no_older_than_the_last_finished() -> None:
    backlog = Backlog()
    backlog.look(Work(5), position=5, end=5, now_ms=T - 60_000)
    assert backlog.look(Work(8, done_ms=T - 3000), position=8, end=20, now_ms=T) == (12, 3.0)


def test_record_after_a_long_silence_has_no_lag() -> None:
    backlog = Backlog()
    backlog.look(Work(5, done_ms=T - 9_000_000), position=5, end=5, now_ms=T - 2000)
    assert backlog.look(Work(5, done_ms=T - 9_000_000), position=5, end=6, now_ms=T) == (1, 2.0)


def test_lag_present_at_the_start_grows_from_the_start() -> None:
    backlog = Backlog()
    assert backlog.look(Work(), position=5, end=100, now_ms=T) == (95, 0.0)
    assert backlog.look(Work(), position=5, end=100, now_ms=T + 4000) == (95, 4.0)


def test_group_offset_counts_where_no_offset_is_known() -> None:
    assert Backlog().look(Work(), position=40, end=100, now_ms=T)[0] == 60


def test_clock_behind_the_producers_gives_no_negative_age() -> None:
    assert Backlog().look(Work(4, in_hand_ms=T + 9000), position=10, end=10, now_ms=T) == (6, 0.0)


LIMIT, HANDLING, GAP = 10.0, 30.0, 5.0
WORK = "nothing is committed of messages-0"


def first_stall(looks: list[tuple[float, dict[str, Mark]]]) -> tuple[float, str] | None:
    """Return the time and name of the first stall, if there is one."""
    watch = Watch(LIMIT, HANDLING, GAP)
    for now, to_do in looks:
        stalled = watch.look(to_do, now)
        if stalled is not None:
            return now, stalled
    return None


def every_second(to_do: dict[str, Mark], first: int = 0, last: int = 60) -> list[tuple[float, dict[str, Mark]]]:
    return [(float(second), to_do) for second in range(first, last)]


def test_idle_worker_never_stalls() -> None:
    assert first_stall(every_second({})) is None


def test_unfinished_work_is_a_stall_after_the_limit() -> None:
    assert first_stall(every_second({WORK: Mark(7)})) == (LIMIT, WORK)


def test_any_progress_restarts_the_stall_timer() -> None:
    creeping = [(float(second), {WORK: Mark(second // 9)}) for second in range(60)]
    assert first_stall(creeping) is None


def test_work_finished_in_between_restarts_the_stall_timer() -> None:
    busy, idle = every_second({WORK: Mark(7)}, 0, 9), every_second({}, 9, 10)
    assert first_stall([*busy, *idle, *every_second({WORK: Mark(7)}, 10, 19)]) is None


def test_unresponsive_brokers_are_a_stall() -> None:
    assert first_stall(every_second({BROKER: Mark()})) == (LIMIT, BROKER)


def test_group_that_is_never_joined_is_a_stall() -> None:
    assert first_stall(every_second({GROUP: Mark()})) == (LIMIT, GROUP)


def test_stalled_partition_is_not_hidden_by_another() -> None:
    looks = [(float(s), {"other": Mark(s), WORK: Mark(7)}) for s in range(60)]
    assert first_stall(looks) == (LIMIT, WORK)


def test_agent_may_take_longer_for_records_in_hand() -> None:
    assert first_stall(every_second({WORK: Mark(7, handling=True)})) == (LIMIT + HANDLING, WORK)


def test_suspended_process_is_not_blamed_for_that_time() -> None:
    asleep_for_an_hour = [(0.0, {WORK: Mark(7)}), (3600.0, {WORK: Mark(7)}), (3601.0, {WORK: Mark(7)})]
    assert first_stall(asleep_for_an_hour) is None


def test_waiting_agents_of_one_app_are_no_excuse_for_another() -> None:
    readiness = Readiness("segmenter", "summarizer")
    of_segmenter, of_summarizer = readiness.part(), readiness.part()
    of_summarizer.not_ready("store", "unavailable")
    assert (of_segmenter.reasons, of_summarizer.reasons) == ({}, {"store": "unavailable"})
    assert readiness.reasons == {"segmenter": "starting", "summarizer": "starting", "store": "unavailable"}


async def test_stalls_of_earlier_processes_count_if_never_scraped(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    metrics = EngineMetrics(registry, "worker")
    app = App("app", brokers="127.0.0.1:1", engine=Options(), datadir=tmp_path / "state", metrics=metrics)
    await app.on_first_start()
    assert registry.get_sample_value("engine_watchdog_stalls_total", {"role": "worker"}) == 0
    for _ in range(2):
        remember_stall(app.stalls_file)
    await app.on_first_start()
    assert registry.get_sample_value("engine_watchdog_stalls_total", {"role": "worker"}) == 2


@pytest.mark.parametrize("damaged", ["", "x", "-3", "1e9", "\0"])
def test_damaged_stall_count_does_not_stop_the_start(damaged: str, tmp_path: Path) -> None:
    (tmp_path / "stalls").write_text(damaged)
    assert stalls_before(tmp_path / "stalls") == 0
    assert stalls_before(tmp_path) == 0
    remember_stall(tmp_path / "stalls")
    assert stalls_before(tmp_path / "stalls") == 1


ROLE = {"role": "counter"}


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> EngineMetrics:
    return EngineMetrics(registry, "counter")


def standing(partition: int) -> PartitionStatus:
    return PartitionStatus("orders", partition, True, 7, 1.5, state_bytes=4096)


def lag(registry: CollectorRegistry, partition: int, unit: str = "records") -> float | None:
    labels = {**ROLE, "topic": "orders", "partition": str(partition)}
    return registry.get_sample_value(f"engine_consumer_lag_{unit}", labels)


def test_each_partition_has_its_lag_and_its_state(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    metrics.show([standing(0), standing(1)])
    assert (lag(registry, 1), lag(registry, 1, "seconds")) == (7, 1.5)
    assert registry.get_sample_value("engine_state_bytes", {"partition": "1"}) == 4096


def test_partition_that_moved_away_has_no_series(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    metrics.show([standing(0), standing(1)])
    metrics.show([standing(1)])
    assert lag(registry, 0) is None
    assert lag(registry, 1) == 7


def test_groups_of_one_process_have_separate_series(metrics: EngineMetrics, registry: CollectorRegistry) -> None:
    other = metrics.of_group("other")
    metrics.show([standing(0)])
    other.show([standing(0), standing(1)])
    other.show([standing(1)])
    labels = {"role": "other", "topic": "orders"}
    names = [registry.get_sample_value("engine_consumer_lag_records", labels | {"partition": n}) for n in "01"]
    assert (lag(registry, 0), names) == (7, [None, 7])
    assert (metrics.partition_statuses, other.partition_statuses) == ([standing(0)], [standing(1)])
    assert metrics.groups == [metrics, other]
    assert registry.get_sample_value("engine_records_expired_total", {"role": "other"}) == 0
    other.expired(3)
    assert registry.get_sample_value("engine_records_expired_total", {"role": "other"}) == 3


def test_recoveries_rebalances_stalls_and_losses_are_counted_and_timed(
    metrics: EngineMetrics, registry: CollectorRegistry
) -> None:
    assert registry.get_sample_value("engine_watchdog_stalls_total", ROLE) == 0
    metrics.recovered(records=12, seconds=0.3)
    metrics.rebalanced(seconds=2.0)
    assert registry.get_sample_value("engine_records_expired_total", ROLE) == 0
    metrics.stalled()
    metrics.expired(12)
    assert registry.get_sample_value("engine_recovered_records_total") == 12
    assert registry.get_sample_value("engine_recovery_duration_seconds_sum", ROLE) == 0.3
    assert registry.get_sample_value("engine_rebalance_duration_seconds_sum", ROLE) == 2.0
    assert registry.get_sample_value("engine_watchdog_stalls_total", ROLE) == 1
    assert registry.get_sample_value("engine_records_expired_total", ROLE) == 12


def test_described_metrics_keep_their_full_names(metrics: EngineMetrics) -> None:
    assert {family.name for family in metrics.described} >= {"engine_state_bytes", "engine_recovered_records_total"}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_returned_despite_fragmentation() -> None:
    blocks = [bytes(100_000) for _ in range(500)]
    last = blocks.pop()
    before = resident_bytes()
    del blocks
    return_freed_memory()
    assert before - resident_bytes() > 25_000_000
    assert len(last) == 100_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
