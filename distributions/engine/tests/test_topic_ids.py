"""Requests for the ids of topics, in an encoding that aiokafka does not implement."""

import struct
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion

from faust_eos.kafka import Admin, MetadataRequest_v10, MetadataResponse_v10, TopicIdsRequest, ids_in

ORDERS_ID = bytes(range(248, 256)) + bytes(range(8))
ONE = struct.pack(">i", 1)
PARTITION = struct.pack(">hiii", 0, 0, 1, 0) + b"\x02" + ONE + b"\x02" + ONE + b"\x01\x00"
"""Partition 0 without an error: leader 1 in epoch 0, one replica in sync, none offline, no tags."""
ANSWER = (
    struct.pack(">i", 0)  # throttled
    + b"\x02"
    + struct.pack(">i", 1)
    + b"\x05host"
    + struct.pack(">i", 9092)
    + b"\x00\x00"  # one broker without a rack
    + b"\x08cluster"
    + struct.pack(">i", 1)
    + b"\x03"  # two topics
    + struct.pack(">h", 0)
    + b"\x07orders"
    + ORDERS_ID
    + b"\x00"
    + b"\x02"
    + PARTITION
    + struct.pack(">i", -1)
    + b"\x00"
    + struct.pack(">h", 3)
    + b"\x05gone"
    + bytes(16)
    + b"\x00"
    + b"\x01"
    + struct.pack(">i", -1)
    + b"\x00"
    + struct.pack(">i", -1)
    + b"\x00"
)
"""Response written by hand, after the message definition of Kafka (MetadataResponse.json) and KIP-482."""


def test_topic_ids_are_read_and_missing_topics_have_none() -> None:
    answer = MetadataResponse_v10.decode(ANSWER)
    assert answer.encode() == ANSWER
    assert ids_in(answer.to_object()["topics"]) == {"orders": ORDERS_ID.hex()}


@pytest.mark.parametrize(("error_code", "half"), [(3, 1), (0, 0)])
def test_error_or_empty_id_means_no_topic_id(error_code: int, half: int) -> None:
    assert ids_in([{"topic": "orders", "error_code": error_code, "id_high": half, "id_low": half}]) == {}


def test_request_for_topic_ids_creates_no_topics() -> None:
    [request] = [TopicIdsRequest(["orders"]).build(MetadataRequest_v10)]
    assert request.encode() == b"\x02" + bytes(16) + b"\x07orders\x00" + b"\x00\x00\x00" + b"\x00"


@pytest.mark.parametrize("versions", [{3: (0, 9)}, {3: (0, 5)}, {}])
async def test_broker_without_topic_ids_gives_none(versions: dict[int, tuple[int, int]]) -> None:
    class Old(Admin):
        def __init__(self) -> None:
            """Make no connection."""

        async def _send_request(self, request: Any, node_id: int | None = None) -> Any:
            assert request.prepare(versions)

    assert await Old().topic_ids(["orders"]) == {}


def test_broker_of_unknown_versions_is_not_asked_for_ids() -> None:
    with pytest.raises(IncompatibleBrokerVersion):
        TopicIdsRequest(["orders"]).prepare({})
