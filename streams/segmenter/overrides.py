"""Settings of a single conversation: they arrive in a message's `metadata.afterword`, and stay until replaced."""

from functools import lru_cache
from typing import Any

import orjson
import structlog
from pydantic import ValidationError

from afterword.schemas import InvalidRecord
from afterword.streams.segmenter.rules import MAX_PENDING_MESSAGES, EpisodeRules, episode_rules
from afterword.streams.settings import Episodes

FIELD = "afterword"
NAMES = (
    "trigger",
    "trigger_tokens",
    "auto_summarize",
    "min_episode_size",
    "max_episode_size",
    "max_episode_tokens",
    "idle_seconds",
)
"""The settings that a conversation may override, all of which concern only the next message. Overlap and the duplicate
window reach back, so they are the deployment's."""
MAX_BYTES = 2000
"""Maximum number of bytes of their JSON, which is in the conversation's row and so is written with every batch."""
MAX_IDLE_SECONDS = 2_592_000
"""30 days, the longest idle timeout that a conversation may set for itself."""
REMEMBERED = 1024

log = structlog.get_logger()


class Rulebook:
    """Compiles the rules of the deployment and of conversations with overrides, and keeps them."""

    def __init__(self, limits: Episodes, max_pending: int = MAX_PENDING_MESSAGES) -> None:
        self._limits = limits
        self._max_pending = max_pending
        self._common = episode_rules(limits, max_pending)
        self._most = {"idle_seconds": MAX_IDLE_SECONDS, "max_episode_size": max_pending}
        self._settings = lru_cache(REMEMBERED)(self._validated)
        self._of = lru_cache(REMEMBERED)(self._compiled)

    def rules(self, overrides: str) -> EpisodeRules:
        """Return the rules for overrides that `read` returned, perhaps to a worker with other settings."""
        return self._of(overrides) if overrides else self._common

    def read(self, metadata: dict[str, Any], current: str) -> str:
        """Return the conversation's overrides after a message, as JSON; empty if it has none.

        Raises: InvalidRecord, without any content.
        """
        given = metadata.get(FIELD)
        if given is None:
            return current
        if not isinstance(given, dict):
            raise _invalid("", "must be an object")
        if not given.keys() <= set(NAMES):
            raise _invalid("", f"may have {', '.join(NAMES)}, and nothing else")
        if not given:
            return ""
        text = orjson.dumps(given, option=orjson.OPT_SORT_KEYS)
        if len(text) > MAX_BYTES:
            raise _invalid("", f"{len(text)} bytes of JSON, at most {MAX_BYTES} can be taken")
        found = text.decode()
        try:
            self._settings(found)
        except ValidationError as error:
            raise _invalid(*_where_and_what(error)) from None
        return found

    def _validated(self, text: str) -> Episodes:
        """Raises: ValidationError, InvalidRecord."""
        overrides = orjson.loads(text)
        settings = Episodes.model_validate(self._limits.model_dump() | overrides, strict=True)
        for name, most in self._most.items():
            if name in overrides and getattr(settings, name) > most:
                raise _invalid(f".{name}", f"at most {most}")
        return settings

    def _compiled(self, overrides: str) -> EpisodeRules:
        try:
            return episode_rules(self._settings(overrides), self._max_pending)
        except (ValidationError, InvalidRecord) as error:  # accepted by a worker with other settings or limits
            problem = error.detail if isinstance(error, InvalidRecord) else _where_and_what(error)[1]
            log.warning("overrides_ignored", stage="segmenter", error_type="invalid_override", problem=problem)
            return self._common


def _where_and_what(error: ValidationError) -> tuple[str, str]:
    first = error.errors(include_input=False, include_url=False)[0]
    return "".join(f".{part}" for part in first["loc"]), first["msg"].removeprefix("Value error, ")


def _invalid(where: str, problem: str) -> InvalidRecord:
    return InvalidRecord("invalid_override", f"metadata.{FIELD}{where}: {problem}")
