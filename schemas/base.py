"""What all events share: the base model, ids, times, and the repair of JSON with careless Unicode.

Composite ids are deterministic: repeating an operation yields the same id.
"""

import ast
import json
import re
from datetime import UTC, datetime, timedelta
from enum import Enum
from hashlib import blake2b
from inspect import cleandoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any, NamedTuple
from uuid import UUID, uuid5

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticSerializationError

from afterword_text.visible import without_surrogates

_Whole = BeforeValidator(lambda value: without_surrogates(value) if isinstance(value, str) else value)
Id = Annotated[str, StringConstraints(min_length=1, max_length=256), _Whole]
"""An identifier chosen by a producer: any text of 1 to 256 characters."""
PartyId = Annotated[str, StringConstraints(max_length=256), _Whole]
"""The id of a user, an agent or a tenant. It may be empty, and it is bounded because rows and indexes hold it."""

TextList = Annotated[tuple[str, ...], Field(fail_fast=True)]
"""A list of strings. Validation stops at the first invalid item: an error for each one would take 500 times as many
bytes as the items themselves."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


def rfc3339(moment: datetime) -> str:
    """Format a moment as RFC 3339 in UTC, always with milliseconds, so that equal moments are equal strings."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds(moment: datetime) -> int:
    return (moment - EPOCH) // MILLISECOND


def moment_at(milliseconds: int) -> datetime:
    """Return the moment that is this many milliseconds after the beginning of 1970. Raises: OverflowError."""
    return EPOCH + milliseconds * MILLISECOND


def utc_milliseconds(moment: datetime) -> datetime:
    """Convert to UTC and truncate to milliseconds, which Kafka timestamps and BSON dates hold without loss."""
    if moment.tzinfo is not UTC:  # most times are in UTC already, and this runs for every message
        try:
            moment = moment.astimezone(UTC)
        except OverflowError:
            raise ValueError("outside the years 1 to 9999 in UTC") from None
    beyond = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - beyond) if beyond else moment


_LAX_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)


def parsed_time(moment: object) -> object:
    """Parse a string that holds a date and a time.

    A number in a string is rejected: pydantic would read it as seconds since 1970, and the schema forbids it.
    """
    if not isinstance(moment, str):
        return moment
    try:
        if moment[4:5] == "-":
            return _LAX_TIME.validate_python(moment)
    except ValueError:  # pydantic's errors are ValueErrors too
        pass  # the original message would quote the content
    raise ValueError("must be a date and a time with an offset, as in RFC 3339")


Time = Annotated[
    AwareDatetime,
    BeforeValidator(parsed_time),
    AfterValidator(utc_milliseconds),
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment with a UTC offset, stored in UTC with milliseconds."""


BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"\\u(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
_ENCODED = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A surrogate encoded as if it were a UTF-8 character."""
MOST_MENDED = 10_000
"""Data with this many defects is left alone: they are not an accident, and repairing them would take time."""
NEVER = b"\xff"
r"""A byte that never occurs in UTF-8. It stands in for an escaped backslash, after which `\\ud800` is plain text."""


def mended(data: bytes) -> bytes:
    """Drop a byte order mark and replace each lone surrogate, as left by a cut inside an emoji, with U+FFFD.

    Returns equal bytes if there is nothing to repair. Runs in linear time.
    """
    content = data.removeprefix(BYTE_ORDER_MARK)
    if NEVER in content:
        return data
    content, encoded = _ENCODED.subn("\ufffd".encode(), content, MOST_MENDED)
    content, lone = _LONE.subn(rb"\\ufffd", content.replace(rb"\\", NEVER), MOST_MENDED)
    return content.replace(NEVER, rb"\\") if max(encoded, lone) < MOST_MENDED else data


class Model(BaseModel):
    """The immutable base of all events.

    Unknown fields are ignored, because a newer producer must not break an older worker. Validation is strict: `"5"` is
    not a number, and `5` is not a time.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        hide_input_in_errors=True,  # it may be a text that somebody wrote
        json_schema_serialization_defaults_required=True,  # every field is present in what we write
        defer_build=True,  # a command needs few of the models
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Describe each field by the docstring below it.

        pydantic has an option for this, which parses the source of every model at import: 50 ms for each command.
        """
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for model in cls.__mro__[: cls.__mro__.index(BaseModel)]:
            for pair in pairwise(ast.parse(dedent(getsource(model))).body[0].body):  # type: ignore[attr-defined]
                match pair:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                        for each in {name, getattr(cls.model_fields.get(name), "alias", None)} & properties.keys():
                            properties[each].setdefault("description", cleandoc(text))
        return schema

    def to_json(self, **options: Any) -> bytes:
        """Serialize to UTF-8 JSON as sent on a topic, with U+FFFD for a lone surrogate.

        `options` are those of pydantic's `model_dump`, such as `include`.
        """
        try:
            return self.__pydantic_serializer__.to_json(self, **options)
        except PydanticSerializationError:  # a lone surrogate
            return mended(json.dumps(self.model_dump(mode="json", **options)).encode())


POINT_NAMESPACE = UUID("8b0f4b0e-6e1f-5d7b-9a5c-3f1b6c1d2e4f")
"""Namespace of the points in Qdrant. It must never change, or every point would get a second id."""


def escape(part: str) -> str:
    """Percent-encode separators in one part of a composite id."""
    return part.replace("%", "%25").replace(":", "%3A").replace("/", "%2F")


def unescape(part: str) -> str:
    """Reverse `escape`."""
    return part.replace("%3A", ":").replace("%2F", "/").replace("%25", "%")


def message_key(conversation_id: str, message_id: str, tenant_id: str | None = None) -> str:
    """Return a message's `_id` in MongoDB. Message ids are only unique per conversation and tenant."""
    key = f"{escape(conversation_id)}:{escape(message_id)}"
    return key if tenant_id is None else f"{key}:{escape(tenant_id)}"


def user_digest(user_id: str) -> str:
    """Return what is kept of a user's id where the id itself must not be, because erasures do not look there."""
    return blake2b(user_id.encode(), digest_size=16).hexdigest()


def episode_id(conversation_id: str, ordinal: int, agent_id: str | None = None) -> str:
    """Return `conversation:ordinal`, or `conversation/agent:ordinal` if episodes are kept per agent."""
    scope = "" if agent_id is None else f"/{escape(agent_id)}"
    return f"{escape(conversation_id)}{scope}:{ordinal}"


def conversation_of_episode(episode: str) -> str:
    return unescape(episode.rpartition(":")[0].partition("/")[0])


def scope_id(conversation_id: str, agent_id: str | None = None) -> str:
    """Return the id of a conversation, or of one agent's part of it, for ordinals, counts and rolling summaries.

    With an agent it is `conversation//agent`, each part percent-encoded. Without one it contains no slash, because `%`
    and `/` in the conversation's id are percent-encoded.
    """
    if agent_id is None:
        return conversation_id.replace("%", "%25").replace("/", "%2F")
    return f"{escape(conversation_id)}//{escape(agent_id)}"


def conversation_of_scope(scope: str) -> tuple[str, str | None]:
    """Return the conversation and, if there is one, the agent of a `scope_id`."""
    conversation, separator, agent = scope.partition("//")
    return unescape(conversation), unescape(agent) if separator else None


def event_id(episode: str, revision: int) -> str:
    """Return the id of a `summary.created`. Repeated announcements of one event carry the same id."""
    return f"{episode}:{revision}"


def row_id(conversation_id: str, row: int) -> str:
    """Return the `_id` of a row in the rolling summary of a `scope_id`."""
    return f"{escape(conversation_id)}:{row}"


def point_id(episode: str) -> str:
    """Return an episode's id in Qdrant, the UUIDv5 of its `episode_id`."""
    return str(uuid5(POINT_NAMESPACE, episode))


class Anyone(Enum):
    """A marker for "do not compare owners".

    It is not None, because a caller that lacks a user might pass that by mistake.
    """

    ANYONE = "anyone"


ANYONE = Anyone.ANYONE


class Owner(NamedTuple):
    """The required owner of a conversation. A tenant of None requires a conversation without a tenant."""

    user_id: str | Anyone = ANYONE
    tenant_id: str | Anyone | None = ANYONE

    def has(self, user_id: str, tenant_id: str | None) -> bool:
        """Return whether a conversation of this user and tenant belongs to the owner."""
        return self.user_id in (ANYONE, user_id) and self.tenant_id in (ANYONE, tenant_id)
