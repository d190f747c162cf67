"""Errors that a partition answers by starting over, and errors that stop the worker."""

import pytest
from aiokafka import errors

from afterword.streams.runtime.errors import FATAL, TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        errors.ProducerFenced,
        errors.IllegalOperation,  # of a producer that was fenced between two sends of one commit
        errors.InvalidProducerEpoch,
        errors.KafkaConnectionError,
        errors.KafkaTimeoutError,
        errors.NotEnoughReplicasError,
        ConnectionResetError,
        TimeoutError,
    ],
)
def test_what_passes_is_waited_for(error: type[Exception]) -> None:
    assert issubclass(error, TRANSIENT)
    assert not issubclass(error, FATAL)


@pytest.mark.parametrize("error", [errors.MessageSizeTooLargeError, errors.TopicAuthorizationFailedError])
def test_what_no_new_start_can_mend_stops_the_worker(error: type[Exception]) -> None:
    assert issubclass(error, FATAL)
