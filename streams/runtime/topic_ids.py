"""Ids of topics: one that was deleted and recreated has the same name and another id (KIP-516).

aiokafka speaks version 5 of Metadata at most; ids came with version 10, whose encoding is the flexible one (KIP-482).
"""

from collections.abc import Sequence
from io import BytesIO
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema, TaggedFields

UUID_BYTES = 16
NO_ID = bytes(UUID_BYTES)
NO_TAGS: dict[int, bytes] = {}


class Uuid(AbstractType[bytes]):
    """Sixteen bytes as they are."""

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        value = data.read(UUID_BYTES)
        if len(value) != UUID_BYTES:
            raise ValueError("Buffer underrun decoding a UUID")
        return value


class MetadataResponse_v10(Response):  # noqa: N801 – named like aiokafka's
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class MetadataRequest_v10(RequestStruct):  # noqa: N801 – named like aiokafka's
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIdsRequest(Request[MetadataRequest_v10]):
    """Metadata of some topics, with their ids; creates none."""

    API_KEY = 3

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[MetadataRequest_v10]) -> MetadataRequest_v10:
        topics = [(NO_ID, topic, NO_TAGS) for topic in self._topics]
        return request_struct_class(topics, False, False, False, NO_TAGS)


class Admin(AIOKafkaAdminClient):
    """aiokafka's admin client, which can also ask for the ids of topics."""

    async def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return ids in hex by name; empty from a broker that has none. Raises: KafkaError."""
        try:
            answer = await self._send_request(TopicIdsRequest(topics))
        except (NotImplementedError, IncompatibleBrokerVersion):  # aiokafka's words for a version that is not spoken
            return {}
        return ids_in(answer.to_object()["topics"])


def ids_in(topics: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Select the topics that exist and have an id."""
    return {t["topic"]: t["topic_id"].hex() for t in topics if not t["error_code"] and t["topic_id"] != NO_ID}
