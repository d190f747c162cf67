"""A source that goes back to its beginning is another source."""

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from faust_eos.sources import check_order

SOURCE = TopicPartition("orders", 3)


@pytest.mark.parametrize(("found", "expected"), [(0, -1), (0, 0), (7, 7), (9, 7)])
def test_records_go_on_where_the_last_transaction_ended_or_later(found: int, expected: int) -> None:
    check_order(SOURCE, found, expected)


def test_a_record_from_before_that_is_refused_and_the_partition_is_named() -> None:
    with pytest.raises(OffsetOutOfRangeError, match="orders-3 went back from 7 to 0"):
        check_order(SOURCE, 0, 7)
