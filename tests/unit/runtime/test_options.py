"""Settings reach the engine under their own names."""

import pytest

from afterword.streams.app import engine_options
from afterword.streams.settings import Settings

ENGINE = {
    "max_batch": 7,
    "linger_ms": 3,
    "transaction_timeout_seconds": 4.5,
    "commit_timeout_seconds": 5.5,
    "agent_retries": 9,
    "tick_seconds": 0.25,
    "commit_interval_seconds": 0.75,
}


@pytest.mark.parametrize("name", ENGINE)
def test_a_setting_of_the_engine_is_the_option_of_that_name(name: str) -> None:
    options = engine_options(Settings(engine={name: ENGINE[name]}))  # type: ignore[arg-type] – validated by pydantic
    assert getattr(options, name) == ENGINE[name]


def test_a_revoke_drains_no_longer_than_half_of_what_the_group_waits() -> None:
    options = engine_options(Settings(drain_seconds=30, kafka={"rebalance_timeout_seconds": 20}))  # type: ignore[arg-type] – validated by pydantic
    assert (options.drain_seconds, options.revoke_drain_seconds) == (30, 10)


def test_the_records_in_flight_are_limited_as_set() -> None:
    assert engine_options(Settings(max_in_flight=5)).max_in_flight == 5
