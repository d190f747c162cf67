"""The time limit for refusals by Kafka that no retry can change."""

import pytest
from aiokafka.errors import KafkaTimeoutError, MessageSizeTooLargeError, OutOfOrderSequenceNumber

from faust_eos.errors import REFUSED_SECONDS, Refusals

REFUSED, PASSES, FOLLOWS = MessageSizeTooLargeError(), KafkaTimeoutError(), OutOfOrderSequenceNumber()


@pytest.mark.parametrize(
    ("failures", "final"),
    [
        ([(0, REFUSED), (59, REFUSED)], False),
        ([(0, REFUSED), (60, REFUSED)], True),
        ([(0, REFUSED), (30, FOLLOWS), (60, REFUSED)], True),
        ([(0, FOLLOWS), (600, FOLLOWS)], False),
        ([(0, REFUSED), (30, PASSES), (60, REFUSED)], False),
        ([(0, PASSES), (600, PASSES)], False),
    ],
)
def test_only_a_minute_of_refusals_is_final(failures: list[tuple[float, Exception]], final: bool) -> None:
    refusals = Refusals(REFUSED_SECONDS)
    assert [refusals.are_final(error, now) for now, error in failures][-1] is final
