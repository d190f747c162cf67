"""Values of labels, kept to sets that are known beforehand: a series is for ever, and memory for it in two places."""

from collections.abc import Iterator

from afterword.streams.errors import AfterwordError, snake_case

OTHER = "other"
INVALID_RECORDS = frozenset(
    {"empty_value", "invalid_json", "invalid_override", "key_mismatch", "missing_key", "schema_violation"}
    | {"tenant_mismatch", "too_large", "unknown_type"}
)
"""The `error_type` of records that cannot be taken."""
REFUSALS = frozenset(
    {"copied", "echo", "empty", "off_topic", "refused", "repetition", "too_long", "too_short", "ungrounded"}
    | {"unsupported_figure", "wrong_language"}
)
"""Why a summary was refused."""
FALLBACKS = frozenset({"extractive_provider"})


def error_type(name: str) -> str:
    """The name of one of our errors, else `other`."""
    return name if name in INVALID_RECORDS | REFUSALS | FALLBACKS or name in set(_names(AfterwordError)) else OTHER


def _names(kind: type[AfterwordError]) -> Iterator[str]:
    yield snake_case(kind)
    for special in kind.__subclasses__():
        yield from _names(special)
