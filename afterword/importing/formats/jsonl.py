"""Our own JSON Lines: messages as `afterword produce` takes them."""

from collections.abc import Iterator
from typing import Any

from afterword.importing.identity import user_of
from afterword.importing.outcomes import Files, ImportOptions, ImportOutcome, LeftOut, Place, Refused, message
from afterword.importing.records import Malformed, line_records
from afterword.schemas.messages import MESSAGE_CREATED


def read(files: Files, options: ImportOptions) -> Iterator[ImportOutcome]:
    """Read a message from each line."""
    for name in files.names:
        with files.open(name) as file:
            for number, record in enumerate(line_records(file), start=1):
                yield _line(Place(name, number), record, options)


def _line(place: Place, record: Any, options: ImportOptions) -> ImportOutcome:
    if record is None:
        return LeftOut("blank line")
    if isinstance(record, Malformed):
        return place.rejected(record.reason)
    if not isinstance(record, dict):
        return place.rejected("schema_violation: not a JSON object")
    if "dialogue" in record or record.get("type", MESSAGE_CREATED) != MESSAGE_CREATED:
        return place.rejected("not a message; edits, deletions, flushes and dialogues are for afterword produce")
    if not isinstance(record.get("conversation_id"), str):
        return place.rejected("schema_violation: conversation_id: a text is required")
    try:
        user = {} if "user_id" in record else {"user_id": user_of(record) or options.user_id}
    except Refused as error:
        return place.rejected(str(error))
    return message(place, options, {**record, **user})
