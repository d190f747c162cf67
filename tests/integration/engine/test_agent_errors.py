"""Errors of the agent: retried, or the worker stops; never lost, and never half visible."""

import pytest

from tests.integration.engine.lab import Lab, until

MANY = 1_000


async def test_failing_record_is_dead_lettered_and_neighbours_done_once(lab: Lab) -> None:
    lab.fault("always", MANY)
    await lab.produce([(2 * (n % 5), {}) for n in range(200)])
    await lab.produce([(12, {"fail": "always"})])
    await lab.produce([(2 * (n % 5), {}) for n in range(200)])
    worker = lab.worker(rejects=True, options={"agent_retries": 2})
    await until(lambda: len(lab.counted()) >= 400, watching=lab)
    numbers = [seen.value["i"] for seen in lab.counted()]
    assert sorted(numbers) == [n for n in range(401) if n != 200]
    assert numbers == sorted(numbers)
    assert [seen.value for seen in lab.outputs if "rejected" in seen.value] == [
        {"rejected": 200, "problem": "ValueError"}
    ]
    lab.fault("always", 0)
    await lab.stop(worker)
    lab.wipe()
    await lab.put(12)  # its state is as if the failed record had not been there
    lab.worker(rejects=True)
    await until(lambda: len(lab.counted()) == 401, watching=lab)
    assert lab.counted()[-1].value["n"] == 1


@pytest.mark.nightly
async def test_overlong_stop_is_cut_short(lab: Lab) -> None:
    lab.fault("once", 1)
    await lab.produce([(0, {}), (0, {"cling": "once"})])
    worker = lab.worker(static=True, options={"drain_seconds": 0.5})
    await until(lambda: lab.fault_left("once") == 0, watching=lab)
    await lab.stop(worker)
    assert "stop_timed_out" in worker.tail()
    lab.worker(static=True)
    await lab.all_counted()


async def test_stop_lets_the_running_batch_finish(lab: Lab) -> None:
    lab.fault("slow", 1)
    await lab.produce([(0, {"sleep": 3.0, "only_if": "slow"})])
    worker = lab.worker(static=True, options={"drain_seconds": 40.0})
    await until(lambda: lab.fault_left("slow") == 0, watching=lab)
    await lab.stop(worker)
    await lab.all_counted()
    await lab.until_committed(1)
    assert await lab.committed() == 1
