"""Reading an LLM's answer: texts that can be stored, or an error that says what was wrong with it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from afterword.streams.errors import AnswerInvalid
from afterword.streams.summarizer.control_tokens import strip_control_tokens
from afterword.streams.summarizer.extractive import condense
from afterword.streams.summarizer.prompt import FIELDS
from afterword.streams.summarizer.sentences import cut_at_sentence, cut_at_word, first_sentences

TITLE_CHARACTERS = 60
SHORT_CHARACTERS = 400
LONG_CHARACTERS = 1000

_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_END_OF_THINKING = "</think>"
_REFUSAL = re.compile(
    r"\W*+(?:(?:i(?:'|’)?m|i am|we are|we(?:'|’)re)?\s*(?:very |so |really )?(?:sorry|afraid|apologi[sz]e)\b.{0,30}\b"
    r"(?:can(?:'|’)?t|cannot|can not|unable|not able|won(?:'|’)?t)\b"
    r"|i (?:apologi[sz]e|can(?:'|’)?t|cannot|can not|won(?:'|’)?t|am unable|am not able)\b"
    r"|as an? (?:ai|artificial intelligence|large language model|language model)\b"
    r"|es tut mir leid, (?:aber )?ich kann|als ki\b"
    r"|je suis désolée?, (?:mais )?je ne (?:peux|puis)|en tant qu(?:'|’)ia\b"
    r"|lo siento, (?:pero )?no puedo|desculpe, (?:mas )?(?:eu )?não posso|mi dispiace, (?:ma )?non posso"
    r"|(?:很抱歉|抱歉|对不起)[，,]?(?:但)?我(?:无法|不能)|申し訳(?:ありません|ございません)が)",
    re.IGNORECASE,
)

_OPENED_TURN = re.compile(
    r"\s*<[|｜](?:im_start|start_header_id)[|｜]>\s*(?:assistant\b)?(?:<[|｜]end_header_id[|｜]>)?\s*"
)
_NEXT_TURN = re.compile(
    r"<[|｜](?:im_end|endoftext|eot_id|end_of_text|end)[|｜]>|</s>|<end_of_turn>|<eos>"
    r"|<[|｜]im_start[|｜]>\s*(?:system|user|assistant|tool)\s*\n"
)
_LABEL = re.compile(r"(?<![\s*_#>])[\s*_#>]*+(?:(?:updated |rolling |short )?summary|title)\s*:[*_\s]*", re.IGNORECASE)
_PREFACE = re.compile(
    r"(?<!\s)\s*+(?:sure|certainly|of course|okay|ok|here(?:'|’)?s|here is)\b[^\n:]{0,120}:\s*\n", re.IGNORECASE
)


@dataclass(frozen=True)
class Answer:
    """Cleaned: no control tokens, single spaces, within the lengths of a Summary."""

    title: str
    short_summary: str
    long_summary: str
    rolling_summary: str = ""
    """Empty where it was not asked for."""


@dataclass(frozen=True)
class Limits:
    """Limits of the texts' lengths."""

    rolling_tokens: int
    long_characters: int = LONG_CHARACTERS

    def cut(self, field: str, text: str) -> str:
        """Cut the text of a field to its limit, with `…`, and put all but the rolling summary on one line."""
        if field == "rolling_summary":
            return condense(text, self.rolling_tokens)  # not cut at its end, which is where the newest facts are
        single = " ".join(text.split())
        if field == "title":
            return cut_at_word(single.strip("\"'“”*# "), TITLE_CHARACTERS)
        limit = {"short_summary": SHORT_CHARACTERS, "long_summary": self.long_characters}
        return cut_at_sentence(single, limit[field])


def read_answer(text: str, limits: Limits, fields: Sequence[str] = FIELDS) -> Answer:
    """Read the JSON object in the text, also in a code fence or after some prose.

    Raises: AnswerInvalid with a problem that can be sent to the LLM; it never repeats what the answer said.
    """
    found = _object_in(without_thinking(text))
    for field in fields:
        if not isinstance(found.get(field), str):
            raise AnswerInvalid(problem=f'"{field}" was {"not a string" if field in found else "missing"}')
    texts = {field: checked(strip_control_tokens(found[field]), f'"{field}"') for field in fields}
    return Answer(**{field: limits.cut(field, texts[field]) for field in fields})


def read_plain(text: str, field: str, limits: Limits, max_sentences: int | None = None) -> str:
    """Read the text of a field; leave out what the model says around it, and the turns that it makes up after it.

    Raises: AnswerInvalid with a problem that can be sent to the LLM; it never repeats what the answer said.
    """
    said = strip_control_tokens(own_turn(without_thinking(text)))
    said = checked(_LABEL.sub("", _PREFACE.sub("", said, count=1), count=1).strip(), "it")
    if field == "title":
        said = checked(next(line for line in said.splitlines() if line.strip()), "it").rstrip(" .。")
    return limits.cut(field, first_sentences(said, max_sentences) if max_sentences else said)


def own_turn(text: str) -> str:
    """Cut the text where the model ended its turn, or opened somebody else's."""
    own = _OPENED_TURN.sub("", text, count=1) if _OPENED_TURN.match(text) else text
    return _NEXT_TURN.split(own, maxsplit=1)[0]


def is_refusal(text: str) -> bool:
    """Tell whether the text begins as models begin when they decline."""
    return bool(_REFUSAL.match(text))


def without_thinking(text: str) -> str:
    """Leave out what a reasoning model thought aloud.

    Where its chat template opens the thought, as that of DeepSeek R1 does, the answer has only the end of it.
    """
    return _THINKING.sub("", text).rpartition(_END_OF_THINKING)[2]


def checked(text: str, name: str) -> str:
    """Return the text if it says something and does not decline. Raises: AnswerInvalid about the text of that name."""
    if not any(c.isalnum() for c in text):
        raise AnswerInvalid(problem=f"{name} was empty")
    if is_refusal(text):
        raise AnswerInvalid(problem=f"{name} was a refusal")
    return text


def _object_in(text: str) -> dict[str, Any]:
    if not text.strip():
        raise AnswerInvalid(problem="it was empty")
    start, end = text.find("{"), text.rfind("}")
    if start < 0 or end < start:
        raise AnswerInvalid(problem="it was a refusal" if is_refusal(text) else "it held no JSON object")
    try:
        found = orjson.loads(text[start : end + 1])
    except orjson.JSONDecodeError:
        raise AnswerInvalid(problem="it was not valid JSON") from None
    if not isinstance(found, dict):
        raise AnswerInvalid(problem="it held no JSON object")
    return found
