"""Stalls of a worker, both real and apparent."""

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from faust_eos.app import App
from faust_eos.health import BROKER, GROUP, Mark, Readiness, Watch, remember_stall, stalls_before
from faust_eos.metrics import EngineMetrics
from faust_eos.options import Options

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
