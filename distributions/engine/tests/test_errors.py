"""Errors that a partition answers by starting over, and errors that stop the worker."""

from typing import Any

import pytest
from aiokafka import errors

from faust_eos.errors import FATAL, TRANSIENT, place_of, refuses_record, restart_seconds


@pytest.mark.parametrize(
    "error",
    [
        errors.ProducerFenced,
        errors.IllegalOperation,  # the producer was fenced between two sends of one commit
        errors.InvalidProducerEpoch,
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.NotEnoughReplicasError,
        ConnectionResetError,
        TimeoutError,
    ],
)
def test_transient_kafka_errors_are_retried(error: type[Exception]) -> None:
    assert issubclass(error, TRANSIENT)
    assert not issubclass(error, FATAL)


@pytest.mark.parametrize("code", [32, 43, 44, 76, 87])
def test_error_about_a_record_refuses_that_record(code: int) -> None:
    error = errors.for_code(code)()
    assert error.errno == code
    assert refuses_record(error)


@pytest.mark.parametrize("code", [-1, 2, 3, 6, 7, 10, 18, 19, 29, 45, 47, 48, 51, 56, 59, 74, 89, 90, 100, 120])
def test_error_about_anything_else_refuses_no_record(code: int) -> None:
    assert not refuses_record(errors.for_code(code)())


@pytest.mark.parametrize("error", [errors.MessageSizeTooLargeError, errors.TopicAuthorizationFailedError])
def test_permanent_kafka_error_stops_the_worker(error: type[Exception]) -> None:
    assert issubclass(error, FATAL)


def test_failed_partition_opening_backs_off_up_to_one_heartbeat() -> None:
    assert [restart_seconds(0.4, failures) for failures in (1, 2, 3, 10_000)] == pytest.approx([0.6, 1.2, 2.0, 2.0])
    assert restart_seconds(3.0, 1) == restart_seconds(3.0, 9) == 4.5


def test_error_location_is_the_innermost_line_of_the_application() -> None:
    library: dict[str, Any] = {"__name__": "library"}
    exec("def fails():\n  {}[0]", library)

    def agent() -> None:
        library["fails"]()

    with pytest.raises(KeyError) as raised:
        agent()
    assert place_of(raised.value) == f"KeyError at {__name__}:{agent.__code__.co_firstlineno + 1}"
