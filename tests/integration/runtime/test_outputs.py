"""Where the agent's outputs go."""

from tests.integration.runtime.lab import Lab


async def test_an_output_topic_that_is_gone_stops_the_worker_and_is_named(lab: Lab) -> None:
    worker = lab.worker(options={"commit_timeout_seconds": 3.0})
    await lab.produce([(0, {})])
    await lab.all_counted()
    await lab.delete(lab.output)
    await lab.produce([(0, {})])
    assert await lab.exit_code(worker) == 1
    assert f"topic {lab.output}, to which the agent writes, does not exist" in worker.tail()
    await lab.until_committed(1)
    assert await lab.committed() == 1
