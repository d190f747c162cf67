"""Settings reach the engine under their own names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from afterword.streams.app import engine_options, faust_app
from afterword.streams.settings import HEARTBEAT_SECONDS, REBALANCE_SECONDS, Settings
from faust_eos.at_least_once import LAST_COMMIT_SECONDS


def test_revocation_drains_half_the_groups_wait_at_most() -> None:
    options = engine_options(Settings(drain_seconds=90, kafka={"request_timeout_seconds": 300}))  # type: ignore[arg-type] – validated by pydantic
    assert (options.drain_seconds, options.revoke_drain_seconds) == (90, REBALANCE_SECONDS / 2)


@given(drain=st.floats(1, 600), session=st.floats(6, 60), request=st.floats(11, 120))
def test_revocation_ends_before_the_others_stop_waiting(drain: float, session: float, request: float) -> None:
    """Otherwise they consider the coordinator dead, and the group starts over while work is in progress."""
    kafka = {"session_timeout_seconds": session, "request_timeout_seconds": request}
    settings = Settings(drain_seconds=drain, kafka=kafka)  # type: ignore[arg-type]  # validated by pydantic
    drained = engine_options(settings).revoke_drain_seconds
    assert 0 < drained <= drain
    assert HEARTBEAT_SECONDS + drained < request
    assert drained <= REBALANCE_SECONDS / 2


def test_default_timeouts_leave_time_for_a_last_commit() -> None:
    settings = Settings()
    spent = HEARTBEAT_SECONDS + engine_options(settings).revoke_drain_seconds + LAST_COMMIT_SECONDS
    assert spent < settings.kafka.request_timeout_seconds


def test_request_timeout_below_the_heartbeat_is_a_wrong_setting() -> None:
    with pytest.raises(ValidationError, match=r"kafka\.request_timeout_seconds\n.*greater than or equal to 1"):
        Settings(kafka={"request_timeout_seconds": HEARTBEAT_SECONDS})  # type: ignore[arg-type]  # validated by pydantic


@pytest.mark.parametrize("session_seconds", [6, 45])
def test_long_and_short_sessions_notice_a_rebalance_alike(session_seconds: float) -> None:
    app = faust_app(Settings(kafka={"session_timeout_seconds": session_seconds}), "app")  # type: ignore[arg-type]  # validated by pydantic
    assert app.conf.broker_heartbeat_interval <= 0.3
    assert app.conf.broker_session_timeout == session_seconds


@pytest.mark.parametrize(("slots", "records"), [(1, 16), (8, 16), (20, 40), (128, 256)])
def test_records_in_flight_exceed_the_llms_concurrency(slots: int, records: int) -> None:
    llm = {"provider": "ollama", "model": "small", "max_concurrency": slots}
    assert engine_options(Settings(llm=llm)).max_in_flight == records
