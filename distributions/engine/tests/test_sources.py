"""A source whose offsets went back, or that was recreated, is refused."""

from contextlib import nullcontext

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from faust_eos.database import DatabasePosition
from faust_eos.errors import SourceRecreated
from faust_eos.kafka import check_order, check_source
from tests.rows import with_rows

SOURCE = TopicPartition("orders", 3)


@pytest.mark.parametrize(("found", "expected"), [(0, -1), (0, 0), (7, 7), (9, 7)])
def test_records_continue_where_the_last_transaction_ended_or_later(found: int, expected: int) -> None:
    check_order(SOURCE, found, expected)


def test_record_from_before_a_partition_grew_is_refused() -> None:
    with pytest.raises(OffsetOutOfRangeError, match="orders-3 went back from 7 to 0"):
        check_order(SOURCE, 0, 7)


@with_rows
def test_source_topic_with_another_id_is_refused(source: int, known: str, found: str, is_refused: bool) -> None:
    with pytest.raises(SourceRecreated, match="orders was deleted") if is_refused else nullcontext():
        check_source("orders", DatabasePosition(source=source, source_id=known), found)
