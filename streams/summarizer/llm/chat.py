"""Questions to an LLM, its replies, and the interface that chat protocols implement."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from afterword.schemas import Usage
from afterword.streams.errors import AnswerInvalid
from afterword.streams.http import no_answer
from afterword.streams.text.content import ASKED, TEXTS, ContentUnreadable, Kind, flatten, flatten_message, walk
from afterword.streams.text.fences import Messages
from afterword.streams.text.tokens import TOKENIZER_MARGIN, count_tokens

MOST_CHARACTERS = 100_000
"""Maximum number of characters of an answer that are read; no model writes more, only a broken server sends more."""
_COMPLETE = """
finish reason stop eos token sequence end of turn found complete completed done finished tool call calls use function
"""
COMPLETE = frozenset(_COMPLETE.split())
"""Words of the reasons for which a model finishes its answer: `end_turn`, `FINISH_REASON_STOP`. With any other word,
the answer counts as cut off."""
MOST_TOKENS = 10**9
"""Largest number of tokens in one call that is believed; sums of such numbers fit into 64 bits."""


@dataclass(frozen=True)
class ChatRequest:
    """One question. The answer depends on it and on the LLM's settings, and on nothing else."""

    messages: Messages
    max_tokens: int
    """Limit of the answer."""
    schema: dict[str, Any] | None = None
    """JSON schema of the answer; None means plain text."""
    model: str | None = None
    """The model; None means the one in the settings."""
    left_out: frozenset[str] = frozenset()
    """Optional fields of the protocol that are not sent to the server."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the messages, by our tokenizer."""
        return sum(count_tokens(message["content"]) for message in self.messages)

    def room(self, context_tokens: int) -> int:
        """Return how many of our tokens the messages may grow by in a model's context; negative if they exceed it."""
        return int((context_tokens - self.max_tokens) / TOKENIZER_MARGIN) - self.prompt_tokens


@dataclass(frozen=True)
class Reply:
    """An LLM's answer to one question."""

    text: str
    usage: Usage
    cut_off: bool = False
    """True if the model stopped before the end."""
    refused: bool = False
    """True if the server says that the model, or a filter, declined."""

    @property
    def outcome(self) -> str:
        """Return `refused`, `cut_off`, or else `ok`, even though the text may still be unusable."""
        if self.refused:
            return "refused"
        return "cut_off" if self.cut_off else "ok"

    @property
    def complete_text(self) -> str:
        """The text of a complete answer. Raises: AnswerInvalid."""
        if self.refused:
            raise AnswerInvalid(problem="it was a refusal")
        if self.cut_off:
            raise AnswerInvalid(problem="it was cut off before its end: be shorter")
        if len(self.text) > MOST_CHARACTERS:
            raise AnswerInvalid(problem=f"it was longer than {MOST_CHARACTERS} characters")
        return self.text


class ChatProtocol(Protocol):
    """Turns a question into an HTTP request, and the response into a reply."""

    name: str

    async def chat(self, request: ChatRequest) -> Reply:
        """Ask once. Raises: ProviderError."""
        ...

    def optional_fields(self, request: ChatRequest) -> frozenset[str]:
        """Return the optional fields that this question is sent with."""
        ...


def said_in(message: Mapping[str, Any], *, is_complete: bool) -> str:
    """Return a message's text, from its content in any form, else from its reasoning or the arguments of a call.

    Raises: ProviderUnavailable for a complete message without any text.
    """
    content = message.get("content")
    if isinstance(content, str) and content.strip():
        return content
    if isinstance(content, dict) and content.keys().isdisjoint(TEXTS):
        return json.dumps(content)  # some servers parse the object that was asked for
    try:  # parts of one answer may be cut anywhere
        pieces = [piece for part in content for piece in flatten(part)] if isinstance(content, list) else []
        said = "".join(piece.text for piece in pieces if piece.kind is Kind.SAID)
        pieces = [] if said.strip() else flatten_message(message)
    except ContentUnreadable:
        said, pieces = "", []
    text = said or "\n".join(piece.text for piece in pieces if piece.kind is not Kind.RESULT)
    if is_complete and not text.strip():
        objects = (value for path, value in walk(message) if path and path[-1] in {*ASKED, "parsed"} and value)
        text = next((value if isinstance(value, str) else json.dumps(value) for value in objects), "")
        if not text.strip():
            raise no_answer("its response has no text")
    return text


def is_complete(reason: object) -> bool:
    """Return whether a model that finished for this reason said everything; None means that no reason is given."""
    words = re.findall(r"[a-z]+|[^a-z_-]", reason.casefold()) if isinstance(reason, str) else []
    return reason is None or (bool(words) and COMPLETE.issuperset(words))


def token_count(value: object) -> int:
    """Read a number of tokens as a server reports it; 0 if it reports none, or nonsense."""
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0
