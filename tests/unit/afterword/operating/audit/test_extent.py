"""Records that the audit reads: those that exist when it starts, then those that have arrived meanwhile."""

from aiokafka import TopicPartition

from afterword.streams.kafka.log_reader import Extent

MESSAGES, OTHER, GROWN = TopicPartition("messages", 0), TopicPartition("messages", 1), TopicPartition("messages", 2)


def test_second_reading_begins_where_the_first_ended() -> None:
    start = Extent({MESSAGES: 3, OTHER: 0}, {MESSAGES: 10, OTHER: 5})
    later = Extent({MESSAGES: 4, OTHER: 0, GROWN: 0}, {MESSAGES: 12, OTHER: 5, GROWN: 2})
    assert (start.size, start.truncated) == (12, {"messages"})
    came = start.before(later)
    assert came == Extent({MESSAGES: 10, OTHER: 5, GROWN: 0}, {MESSAGES: 12, OTHER: 5, GROWN: 2})
    assert came.size == 4
