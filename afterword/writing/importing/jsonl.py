"""Our own JSON Lines format: messages as `afterword produce` accepts them."""

from collections.abc import Iterator
from typing import Any

from afterword.schemas.messages import MESSAGE_CREATED
from afterword.writing.importing.outcomes import ImportOptions, ImportOutcome, Refused, Rejected, found, user_of
from afterword.writing.importing.records import Malformed


def read(where: str, record: Any, options: ImportOptions) -> Iterator[ImportOutcome]:
    if isinstance(record, Malformed):
        yield Rejected(where, record.reason)
    elif not isinstance(record, dict):
        yield Rejected(where, "schema_violation: not a JSON object")
    elif record.get("type", MESSAGE_CREATED) != MESSAGE_CREATED:
        yield Rejected(where, "not a message; send edits, deletions and flushes with afterword produce")
    elif not isinstance(record.get("conversation_id"), str):
        yield Rejected(where, "schema_violation: conversation_id: a string is required")
    else:
        try:
            user = {} if "user_id" in record else {"user_id": user_of(record) or options.user_id}
        except Refused as error:
            yield Rejected(where, str(error))
            return
        yield found(where, options, {**record, **user}, is_shared=True)
