"""Formats of histories: a file for each, and the table that names them."""

from collections.abc import Callable, Iterator

from afterword.importing.formats import chatgpt, jsonl, messages, slack
from afterword.importing.outcomes import Files, ImportOptions, ImportOutcome

Reader = Callable[[Files, ImportOptions], Iterator[ImportOutcome]]
"""Reads a history in an order that depends on its files alone. Raises: HistoryRefused, OSError."""

FORMATS: dict[str, Reader] = {
    "chatgpt": chatgpt.read,
    "messages": messages.read,
    "slack": slack.read,
    "jsonl": jsonl.read,
}
