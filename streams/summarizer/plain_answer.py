"""From the plain text of a small model to a text that can be stored, or to what was wrong with it."""

import re

from afterword.streams.summarizer.answer import Limits, checked, without_thinking
from afterword.streams.summarizer.control_tokens import strip_control_tokens
from afterword.streams.summarizer.sentences import first_sentences

_OPENED_TURN = re.compile(
    r"\s*<[|｜](?:im_start|start_header_id)[|｜]>\s*(?:assistant\b)?(?:<[|｜]end_header_id[|｜]>)?\s*"
)
_NEXT_TURN = re.compile(
    r"<[|｜](?:im_end|endoftext|eot_id|end_of_text|end)[|｜]>|</s>|<end_of_turn>|<eos>"
    r"|<[|｜]im_start[|｜]>\s*(?:system|user|assistant|tool)\s*\n"
)
_LABEL = re.compile(r"\s*(?:[*_#>]+\s*)*(?:(?:updated |rolling |short )?summary|title)\s*:[*_\s]*", re.IGNORECASE)
_PREFACE = re.compile(
    r"\s*(?:sure|certainly|of course|okay|ok|here(?:'|’)?s|here is)\b[^\n:]{0,120}:\s*\n", re.IGNORECASE
)


def read_plain(text: str, field: str, limits: Limits, max_sentences: int | None = None) -> str:
    """The text of that field; what a model says around it, and the turns that it makes up after it, are left out.

    Raises: AnswerInvalid with a problem that can be told to the LLM; it never repeats what the answer said.
    """
    said = strip_control_tokens(own_turn(without_thinking(text)))
    said = checked(_LABEL.sub("", _PREFACE.sub("", said, count=1), count=1).strip(), "it")
    if field == "title":
        said = checked(next(line for line in said.splitlines() if line.strip()), "it").rstrip(" .。")
    return limits.cut(field, first_sentences(said, max_sentences) if max_sentences else said)


def own_turn(text: str) -> str:
    """Up to the token with which the model ended its turn, or opened somebody else's."""
    told = _OPENED_TURN.sub("", text, count=1) if _OPENED_TURN.match(text) else text
    return _NEXT_TURN.split(told, maxsplit=1)[0]
