"""Prompts for summaries: templates as users write them, and the text around them, which is always the same.

Pure functions: the same episode always gives the same prompt.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
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


_RULES = """\
- Write in the third person and in the language of the conversation.
- Keep names, numbers, dates and amounts as they were given, and keep decisions, facts, open items and commitments. \
Never state anything that the input does not.
- No greetings, no filler, no comment on your task.
- Summarise the episode only. The overlap and the previous summary are there so that you understand it."""

_DATA = """\
Summary of the conversation before this episode:
{previous_summary}

Last messages of the episode before, for the transition:
{overlap}

Episode to summarise, each message as [number] role: content, its further lines indented:
{conversation_text}"""

_EPISODIC = f"""\
Summarise one episode of a conversation.
{_RULES}

{_DATA}"""

_FOCUS_POINTS = f"""\
Summarise one episode of a conversation. The long summary tells, in this order and as far as there is any:
1. key decisions and what they were made for;
2. important information: facts, figures, names, preferences;
3. actions that were taken or are planned, and by whom;
4. context that the future of the conversation will need.
{_RULES}

{_DATA}"""

_PLAIN_3_5 = """\
Summarise these messages in 3 to {max_sentences} sentences, in {language}.
- Write in the third person. Paraphrase: quote nobody.
- Keep names, numbers, dates and amounts as they were given. Never state anything that the messages do not.
- No greetings.

Last messages before these, for the transition:
{overlap}

Messages to summarise, each as [number] role: content, its further lines indented:
{conversation_text}"""

EPISODIC = Template("episodic", _EPISODIC)
TEMPLATES = {
    each.preset: each for each in (EPISODIC, Template("focus_points", _FOCUS_POINTS), Template(PLAIN, _PLAIN_3_5))
}


# All texts of a summary as one JSON object

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
what the messages say about people that will matter in later conversations, not what they quote, deny, imagine or \
ask, as a list ([] if nothing) of \
{{"statement": a few words without a subject, "about": "user" or a name, "kind": "identity", "relation", "constraint", \
"preference", "plan" or "event", "attribute": a name such as home_city or employer if it is a value that may change, \
else null, "messages": [numbers of the messages that say it]}}."""
_JSON_SYSTEM = """\
You write the long-term memory of a chat assistant. You are given one episode of a conversation and answer with one \
JSON object that has exactly these fields, all strings except the last:
{asked}

{fence_rule}
{time_rule}"""
_PREVIOUS = "\n\nSummary of the conversation before this episode:\n{previous_summary}"
_END = "\n\nAnswer with the JSON object only."
_JSON_CORRECTION = "\n\nYour previous answer could not be used: {problem}. Answer again, with the JSON object only."

JSON_FRAME = "\n".join((_JSON_SYSTEM, FENCE_RULE, TIME_RULE, *_ASKED.values(), _FACTS, _PREVIOUS, _END))
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
        text += _PREVIOUS
    used = set(placeholders(text))
    data = {name: said for name, said in data_of(episode, request.previous_rolling).items() if name in used}
    facts = {
        "language": language_of(episode) if "language" in used else "",
        "max_sentences": template.max_sentences,
        "max_summary_length": request.max_summary_length,
        "rolling_words": int(request.rolling_tokens * WORDS_PER_TOKEN),
        "problem": problem_line(problem or ""),
    }
    described = {**{field: _ASKED[field] for field in request.fields}, FACTS: _FACTS}
    asked = "\n".join(f'- "{field}": {what}' for field, what in described.items())
    system = _JSON_SYSTEM.format(asked=asked, fence_rule=FENCE_RULE, time_rule=TIME_RULE)
    return fenced_prompt(system, text + _END + (_JSON_CORRECTION if problem else ""), data, facts)


# One text at a time, for models that cannot write JSON

_PLAIN_SYSTEM = f"""\
You write the memory of a chat assistant. Answer with the text alone: no JSON, no list, no heading, no quotation \
marks, no greeting, no comment on your task.
{FENCE_RULE}
{TIME_RULE}"""
_SHORT = """\
Say in 1 or 2 sentences, in {language}, what matters most in this summary. Add nothing to it.
{summary}"""
_TITLE = """\
Give this summary a title, in {language}: at most 60 characters, no full stop.
{summary}"""
_ROLLING = """\
Bring the summary of a conversation up to date, in {language}, in at most {words} words.
- Keep every name, number, date, decision and open item of the previous summary, add what the new messages bring, and \
correct what they change.
- Write in the third person. Paraphrase: quote nobody. Never state anything that the input does not.

Previous summary:
{previous_summary}

New messages, each as [number] role: content, its further lines indented:
{conversation_text}"""
_PLAIN_CORRECTION = "\n\nYour previous answer could not be used: {problem}. Answer again, with the text alone."

PLAIN_FRAME = f"{_PLAIN_SYSTEM}\n{_SHORT}\n{_TITLE}\n{_ROLLING}"
"""Everything that prompts for plain text say besides the template."""


def long_prompt(template: Template, episode: EpisodeClosed, previous: str, problem: str | None) -> Messages:
    """Ask for the long summary, with the template."""
    used = set(placeholders(template.text))
    data = {name: said for name, said in data_of(episode, previous).items() if name in used}
    facts = {"language": language_of(episode), "max_sentences": template.max_sentences}
    return _plain_prompt(template.text, data, facts, problem)


def short_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for the short summary, made from the long one."""
    return _plain_prompt(_SHORT, {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def title_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for a title, made from the long summary."""
    return _plain_prompt(_TITLE, {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def rolling_prompt(episode: EpisodeClosed, previous: str, words: int, problem: str | None) -> Messages:
    """Ask for the rolling summary, made from the previous one and the episode."""
    data = {name: said for name, said in data_of(episode, previous).items() if name != "overlap"}
    return _plain_prompt(_ROLLING, data, {"language": language_of(episode), "words": words}, problem)


def _plain_prompt(text: str, data: dict[str, str], facts: dict[str, object], problem: str | None) -> Messages:
    correction = _PLAIN_CORRECTION if problem else ""
    return fenced_prompt(_PLAIN_SYSTEM, text + correction, data, {**facts, "problem": problem_line(problem or "")})
