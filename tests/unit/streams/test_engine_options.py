"""Settings reach the engine under their own names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from afterword.streams.app import engine_options, faust_app
from afterword.streams.settings import HEARTBEAT_SECONDS, REBALANCE_SECONDS, Settings
from faust_eos.at_least_once import LAST_COMMIT_SECONDS


def test_a_revoke_drains_no_longer_than_half_of_what_the_group_waits() -> None:
    options = engine_options(Settings(drain_seconds=90, kafka={"request_timeout_seconds": 300}))  # type: ignore[arg-type] – validated by pydantic
    assert (options.drain_seconds, options.revoke_drain_seconds) == (90, REBALANCE_SECONDS / 2)


@given(drain=st.floats(1, 600), session=st.floats(6, 60), request=st.floats(11, 120))
def test_a_revoke_ends_while_the_others_still_wait_for_their_request_to_join(
    drain: float, session: float, request: float
) -> None:
    """Otherwise they consider the coordinator dead, and the group starts over while work is in progress."""
    kafka = {"session_timeout_seconds": session, "request_timeout_seconds": request}
    settings = Settings(drain_seconds=drain, kafka=kafka)  # type: ignore[arg-type]  # validated by pydantic
    drained = engine_options(settings).revoke_drain_seconds
    assert 0 < drained <= drain
    assert HEARTBEAT_SECONDS + drained < request
    assert drained <= REBALANCE_SECONDS / 2


def test_with_the_default_timeouts_a_last_commit_has_time_too() -> None:
    settings = Settings()
    spent = HEARTBEAT_SECONDS + engine_options(settings).revoke_drain_seconds + LAST_COMMIT_SECONDS
    assert spent < settings.kafka.request_timeout_seconds


def test_a_request_that_ends_before_a_rebalance_is_noticed_is_a_wrong_setting() -> None:
    with pytest.raises(ValidationError, match=r"kafka\.request_timeout_seconds\n.*greater than or equal to 1"):
        Settings(kafka={"request_timeout_seconds": HEARTBEAT_SECONDS})  # type: ignore[arg-type]  # validated by pydantic


@pytest.mark.parametrize("session_seconds", [6, 45])
def test_a_rebalance_is_noticed_as_soon_with_a_long_session_as_with_a_short_one(session_seconds: float) -> None:
    app = faust_app(Settings(kafka={"session_timeout_seconds": session_seconds}), "app")  # type: ignore[arg-type]  # validated by pydantic
    assert app.conf.broker_heartbeat_interval <= 0.3
    assert app.conf.broker_session_timeout == session_seconds


@pytest.mark.parametrize(("slots", "records"), [(1, 16), (8, 16), (20, 40), (128, 256)])
def test_the_records_in_flight_are_some_more_than_an_llm_can_be_asked_at_once(slots: int, records: int) -> None:
    llm = {"provider": "ollama", "model": "small", "max_concurrency": slots}
    assert engine_options(Settings(llm=llm)).max_in_flight == records
