"""Protobuf schemas as a registry has them, and messages of their types."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format, struct_pb2, text_format, timestamp_pb2, wrappers_pb2
from google.protobuf.any_pb2 import DESCRIPTOR as ANY
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

WELL_KNOWN = (ANY, struct_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR)


def descriptor(text: str) -> FileDescriptorProto:
    """Read a file's descriptor from Protobuf's text format; `field` takes one line each."""
    return text_format.Parse(text, FileDescriptorProto())


def types_of(*files: FileDescriptorProto) -> DescriptorPool:
    """Put files together, each after those that it imports."""
    pool = DescriptorPool()
    for one in WELL_KNOWN:
        pool.AddSerializedFile(one.serialized_pb)
    for number, file in enumerate(files):
        named = FileDescriptorProto.FromString(file.SerializeToString())
        named.name = named.name or f"{number}.proto"
        pool.Add(named)
    return pool


def message(files: Sequence[FileDescriptorProto], name: str, **fields: Any) -> bytes:
    """Return a message of the named type. `fields` are as in JSON."""
    pool = types_of(*files)
    empty = GetMessageClass(pool.FindMessageTypeByName(name))()
    made: bytes = json_format.ParseDict(fields, empty, descriptor_pool=pool).SerializeToString()
    return made


CHAT = descriptor("""
    package: "com.example.chat" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
    message_type {
      name: "ChatMessage"
      field { name: "message_id" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "session_id" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL }
      field { name: "user_id" number: 3 type: TYPE_INT64 label: LABEL_OPTIONAL }
      field {
        name: "direction" number: 4 type: TYPE_ENUM type_name: ".com.example.chat.Direction" label: LABEL_OPTIONAL
      }
      field { name: "body" number: 5 type: TYPE_STRING label: LABEL_OPTIONAL }
      field {
        name: "sent_at" number: 6 type: TYPE_MESSAGE type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL
      }
    }
    enum_type { name: "Direction" value { name: "INBOUND" number: 0 } value { name: "OUTBOUND" number: 1 } }
""")
"""The schema of docs/how-to/connect-a-topic.md."""


def chat_message(message_id: str, session_id: str, user_id: int, direction: str, body: str, sent_ms: int) -> bytes:
    """Return a value of `CHAT` with its message index, without the schema's id."""
    sent_at = datetime.fromtimestamp(sent_ms / 1000, UTC).isoformat()
    fields = {"message_id": message_id, "session_id": session_id, "user_id": user_id, "direction": direction}
    return b"\0" + message([CHAT], "com.example.chat.ChatMessage", **fields, body=body, sent_at=sent_at)
