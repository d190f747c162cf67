"""The base model, ids and times that all events share."""

import json
from datetime import UTC, datetime
from typing import Annotated

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import PydanticSerializationError

from afterword.schemas.mending import mended

Id = Annotated[str, StringConstraints(min_length=1, max_length=256)]
"""An identifier chosen by a producer: any text of 1 to 256 characters."""
PartyId = Annotated[str, StringConstraints(max_length=256)]
"""The id of a user, an agent or a tenant. It may be empty, and it is bounded because rows and indexes hold it."""

TextList = Annotated[tuple[str, ...], Field(fail_fast=True)]
"""A list of strings. Validation stops at the first invalid item: an error for each one would take 500 times as many
bytes as the items themselves."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def rfc3339(moment: datetime) -> str:
    """Format a moment as RFC 3339 in UTC, always with milliseconds, so that equal moments are equal strings."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


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


class Model(BaseModel):
    """The immutable base of all events.

    Unknown fields are ignored, because a newer producer must not break an older worker. Validation is strict: `"5"` is
    not a number, and `5` is not a time.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        json_schema_serialization_defaults_required=True,  # every field is present in what we write
        use_attribute_docstrings=True,
    )

    def to_json(self, *, include: set[str] | None = None) -> bytes:
        """Serialize to UTF-8 JSON as sent on a topic. `include` names the fields to write; None writes all of them."""
        try:
            return self.__pydantic_serializer__.to_json(self, include=include)
        except PydanticSerializationError:  # a lone surrogate
            return mended(json.dumps(self.model_dump(mode="json", include=include)).encode())
