"""The prompt that asks for all texts of a summary as one JSON object."""

from collections.abc import Sequence
from typing import Any, get_args

from afterword.schemas import EpisodeClosed, FactKind
from afterword.streams.prompt_template import placeholders
from afterword.streams.summarizer.prompt.templates import EPISODIC, Template
from afterword.streams.text.fences import (
    FENCE_RULE,
    TIME_RULE,
    Messages,
    data_of,
    fenced_prompt,
    language_of,
    problem_line,
)

FIELDS = ("title", "short_summary", "long_summary", "rolling_summary")
WITHOUT_ROLLING = FIELDS[:3]
FACTS = "facts"
"""The answer's field with the facts, after the texts."""
WORDS_PER_TOKEN = 0.6
"""English prose has about 0.75 words per token; the difference is a margin for other languages."""

_ASKED = {
    "title": "what the episode is about, at most 60 characters, no full stop.",
    "short_summary": "1 to 2 sentences.",
    "long_summary": "3 to 8 sentences, at most {max_summary_length} characters.",
    "rolling_summary": "the whole conversation so far: what the previous summary holds, carried forward, and what this \
episode adds or changes. At most {rolling_words} words.",
}
_FACTS = """\
what the messages say about people that will matter in later conversations, as a list ([] if nothing) of \
{{"statement": a few words without a subject, "about": "user" or a name, "kind": "identity", "relation", "constraint", \
"preference", "plan" or "event", "attribute": a name such as home_city or employer if it is a value that may change, \
else null, "messages": [numbers of the messages that say it]}}."""
_SYSTEM = """\
You write the long-term memory of a chat assistant. You are given one episode of a conversation and answer with one \
JSON object that has exactly these fields, all strings except the last:
{asked}

{fence_rule}
{time_rule}"""
_PREVIOUS = "\n\nSummary of the conversation before this episode:\n{previous_summary}"
_END = "\n\nAnswer with the JSON object only."
_CORRECTION = "\n\nYour previous answer could not be used: {problem}. Answer again, with the JSON object only."

FRAME = "\n".join((_SYSTEM, FENCE_RULE, TIME_RULE, *_ASKED.values(), _FACTS, _PREVIOUS, _END))
"""Everything that a prompt says besides the template."""


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


SCHEMA = schema_of(FIELDS)


def build_prompt(
    episode: EpisodeClosed,
    previous_rolling: str,
    rolling_tokens: int,
    problem: str | None = None,
    *,
    template: Template = EPISODIC,
    fields: Sequence[str] = FIELDS,
    max_summary_length: int = 1000,
) -> Messages:
    """Put the template between our description of the answer and our rule for the fences, which no template changes.

    `problem` says what was wrong with the previous answer. If the rolling summary is asked for, the previous one is
    shown even if the template has no place for it; otherwise its facts would be lost.
    """
    text = template.text
    if "rolling_summary" in fields and "previous_summary" not in placeholders(text):
        text += _PREVIOUS
    used = set(placeholders(text))
    data = {name: said for name, said in data_of(episode, previous_rolling).items() if name in used}
    facts = {
        "language": language_of(episode) if "language" in used else "",
        "max_sentences": template.max_sentences,
        "max_summary_length": max_summary_length,
        "rolling_words": int(rolling_tokens * WORDS_PER_TOKEN),
        "problem": problem_line(problem or ""),
    }
    return fenced_prompt(_system(fields), text + _END + (_CORRECTION if problem else ""), data, facts)


def _system(fields: Sequence[str]) -> str:
    described = {**{field: _ASKED[field] for field in fields}, FACTS: _FACTS}
    asked = "\n".join(f'- "{field}": {what}' for field, what in described.items())
    return _SYSTEM.format(asked=asked, fence_rule=FENCE_RULE, time_rule=TIME_RULE)
