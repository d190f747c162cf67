"""Prompts for summaries: templates as users write them, and the text around them, which `prompts.toml` has.

Pure functions: the same episode always gives the same prompt.
"""

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, get_args

from afterword.schemas import EpisodeClosed, FactKind
from afterword.streams.prompt_template import placeholders
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.fences import (
    FENCE_RULE,
    TIME_RULE,
    Messages,
    cleaned,
    data_of,
    fenced_prompt,
    language_of,
    problem_line,
)
from afterword_text.texts import FACTS

TemplateName = Literal["episodic", "focus_points", "plain_3_5"]

_PROMPTS: dict[str, Any] = tomllib.loads((files(__package__) / "prompts.toml").read_text(encoding="utf-8"))
_JSON, _PLAIN, _PARTS = _PROMPTS["json"], _PROMPTS["plain"], _PROMPTS["parts"]
VERSION_CHARACTERS = 8
PLAIN: TemplateName = "plain_3_5"
MAX_SENTENCES = {PLAIN: 5}
"""Maximum number of sentences of the long summary, by preset."""
MOST_SENTENCES = 8


@dataclass(frozen=True)
class Template:
    """A checked text with placeholders, and its preset, which decides whether the answer is JSON or plain text."""

    preset: TemplateName
    text: str
    custom: bool = False

    @property
    def is_plain(self) -> bool:
        return self.preset == PLAIN

    @property
    def max_sentences(self) -> int:
        return MAX_SENTENCES.get(self.preset, MOST_SENTENCES)

    def version(self, frame: str) -> str:
        """Return the preset and a hash of the whole prompt; `frame` is everything in it but the template."""
        digest = hashlib.sha256(f"{frame}\0{self.text}".encode()).hexdigest()[:VERSION_CHARACTERS]
        return f"{self.preset}{'_custom' if self.custom else ''}-{digest}"


TEMPLATES = {
    preset: Template(preset, text.replace("{rules}", _PARTS["rules"]).replace("{data}", _PARTS["data"]))
    for preset, text in _PROMPTS["templates"].items()
}
EPISODIC = TEMPLATES["episodic"]


# All texts of a summary as one JSON object

WORDS_PER_TOKEN = 0.6
"""English prose has about 0.75 words per token; the difference is a margin for other languages."""

JSON_FRAME = "\n".join(
    (_JSON["system"], FENCE_RULE, TIME_RULE, *_JSON["fields"].values(), _JSON["previous"], _JSON["end"])
)
"""Everything that a prompt for a JSON object says besides the template."""


def schema_of(fields: Sequence[str]) -> dict[str, Any]:
    """Return the JSON schema of the answer. It has no lengths, which strict modes reject; texts are cut later."""
    text = {"type": "string"}
    fact = {
        "statement": text,
        "about": text,
        "kind": {"type": "string", "enum": list(get_args(FactKind))},
        "attribute": {"type": ["string", "null"]},
        "messages": {"type": "array", "items": {"type": "integer"}},
    }
    return _object(dict.fromkeys(fields, text) | {FACTS: {"type": "array", "items": _object(fact)}})


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def json_prompt(request: SummaryRequest, problem: str | None = None, template: Template = EPISODIC) -> Messages:
    """Put the template between our description of the answer and our rule for the fences, which no template changes.

    `problem` says what was wrong with the previous answer. If the rolling summary is asked for, the previous one is
    shown even if the template has no place for it; otherwise its facts would be lost.
    """
    text, episode = template.text, request.episode
    if request.wants_rolling and "previous_summary" not in placeholders(text):
        text += _JSON["previous"]
    used = set(placeholders(text))
    data = {name: said for name, said in data_of(episode, request.previous_rolling).items() if name in used}
    facts = {
        "language": language_of(episode) if "language" in used else "",
        "max_sentences": template.max_sentences,
        "max_summary_length": request.max_summary_length,
        "rolling_words": int(request.rolling_tokens * WORDS_PER_TOKEN),
        "problem": problem_line(problem or ""),
    }
    asked = "\n".join(f'- "{field}": {_JSON["fields"][field]}' for field in (*request.fields, FACTS))
    system = _JSON["system"].format(asked=asked, fence_rule=FENCE_RULE, time_rule=TIME_RULE)
    return fenced_prompt(system, text + _JSON["end"] + (_JSON["correction"] if problem else ""), data, facts)


# One text at a time, for models that cannot write JSON

_PLAIN_SYSTEM = _PLAIN["system"].format(fence_rule=FENCE_RULE, time_rule=TIME_RULE)
PLAIN_FRAME = "\n".join((_PLAIN_SYSTEM, _PLAIN["short"], _PLAIN["title"], _PLAIN["rolling"]))
"""Everything that prompts for plain text say besides the template."""


def long_prompt(template: Template, episode: EpisodeClosed, previous: str, problem: str | None) -> Messages:
    """Ask for the long summary, with the template."""
    used = set(placeholders(template.text))
    data = {name: said for name, said in data_of(episode, previous).items() if name in used}
    facts = {"language": language_of(episode), "max_sentences": template.max_sentences}
    return _plain_prompt(template.text, data, facts, problem)


def short_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for the short summary, made from the long one."""
    return _plain_prompt(_PLAIN["short"], {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def title_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for a title, made from the long summary."""
    return _plain_prompt(_PLAIN["title"], {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def rolling_prompt(episode: EpisodeClosed, previous: str, words: int, problem: str | None) -> Messages:
    """Ask for the rolling summary, made from the previous one and the episode."""
    data = {name: said for name, said in data_of(episode, previous).items() if name != "overlap"}
    return _plain_prompt(_PLAIN["rolling"], data, {"language": language_of(episode), "words": words}, problem)


def _plain_prompt(text: str, data: dict[str, str], facts: dict[str, object], problem: str | None) -> Messages:
    correction = _PLAIN["correction"] if problem else ""
    return fenced_prompt(_PLAIN_SYSTEM, text + correction, data, {**facts, "problem": problem_line(problem or "")})
