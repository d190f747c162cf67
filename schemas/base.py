"""Base model, ids and times of all events."""

import json
import re
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
"""A user, an agent or a tenant; may be empty. Rows and indexes hold it, so it is bounded."""

TextList = Annotated[tuple[str, ...], Field(fail_fast=True)]
"""Texts, validated up to the first that is none: to tell of each would take 500 times the bytes that are at fault."""

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
"""Zero of Kafka's timestamps."""


def rfc3339(moment: datetime) -> str:
    """RFC 3339 in UTC, always with milliseconds, so that equal moments are equal texts."""
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def utc_milliseconds(moment: datetime) -> datetime:
    """The moment in UTC, cut to what a Kafka timestamp and a BSON date hold, so that no store changes it."""
    if moment.tzinfo is not UTC:  # most are: what this costs is paid for each message
        try:
            moment = moment.astimezone(UTC)
        except OverflowError:
            raise ValueError("outside the years 1 to 9999 in UTC") from None
    beyond = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - beyond) if beyond else moment


_LAX_TIME: TypeAdapter[datetime] = TypeAdapter(AwareDatetime)
_UTC_TIME = re.compile(r"\d{4}-\d\d-\d\dT(?:[01]\d|2[0-3]):\d\d:\d\d(?:\.\d{1,6})?Z", re.ASCII)
"""The usual form, which the standard library parses in a tenth of the time, and to the same moment."""


def parsed_time(moment: object) -> object:
    """Parse a text, but no number in one: pydantic would read it as seconds since 1970, and the schema refuses it."""
    if not isinstance(moment, str):
        return moment
    try:
        if _UTC_TIME.fullmatch(moment):
            return datetime.fromisoformat(moment)
        if moment[4:5] == "-":
            return _LAX_TIME.validate_python(moment)
    except ValueError:  # pydantic's are, too
        pass  # its message repeats the text
    raise ValueError("must be a date and a time with an offset, as in RFC 3339")


Time = Annotated[
    AwareDatetime,
    BeforeValidator(parsed_time),
    AfterValidator(utc_milliseconds),
    PlainSerializer(rfc3339, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A moment with an offset, kept in UTC and milliseconds."""


class Model(BaseModel):
    """Immutable; unknown fields are ignored, because a newer producer must not break an older worker.

    Strict: JSON's own types only, so that `"5"` is not a number and `5` is not a time.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        strict=True,
        json_schema_serialization_defaults_required=True,  # what we write always has every field
        use_attribute_docstrings=True,
    )

    def to_json(self, *, include: set[str] | None = None) -> bytes:
        """UTF-8 JSON as it travels on a topic. `include`: the names of the fields; None: all."""
        try:
            return self.__pydantic_serializer__.to_json(self, include=include)
        except PydanticSerializationError:  # a lone surrogate
            return mended(json.dumps(self.model_dump(mode="json", include=include)).encode())
