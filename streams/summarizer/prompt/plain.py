"""Prompts that each ask for one text of a summary in plain text, for models that cannot write JSON."""

from afterword.schemas import EpisodeClosed
from afterword.streams.prompt_template import placeholders
from afterword.streams.summarizer.prompt.templates import Template
from afterword.streams.text.fences import (
    FENCE_RULE,
    TIME_RULE,
    Messages,
    cleaned,
    data_of,
    fenced_prompt,
    language_of,
    problem_line,
)

_SYSTEM = f"""\
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
_CORRECTION = "\n\nYour previous answer could not be used: {problem}. Answer again, with the text alone."

FRAME = f"{_SYSTEM}\n{_SHORT}\n{_TITLE}\n{_ROLLING}"
"""Everything that a prompt says besides the template."""


def long_prompt(template: Template, episode: EpisodeClosed, previous: str, problem: str | None) -> Messages:
    """Ask for the long summary, with the template."""
    used = set(placeholders(template.text))
    data = {name: said for name, said in data_of(episode, previous).items() if name in used}
    facts = {"language": language_of(episode), "max_sentences": template.max_sentences}
    return _prompt(template.text, data, facts, problem)


def short_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for the short summary, made from the long one."""
    return _prompt(_SHORT, {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def title_prompt(episode: EpisodeClosed, summary: str, problem: str | None) -> Messages:
    """Ask for a title, made from the long summary."""
    return _prompt(_TITLE, {"summary": cleaned(summary)}, {"language": language_of(episode)}, problem)


def rolling_prompt(episode: EpisodeClosed, previous: str, words: int, problem: str | None) -> Messages:
    """Ask for the rolling summary, made from the previous one and the episode."""
    data = {name: said for name, said in data_of(episode, previous).items() if name != "overlap"}
    return _prompt(_ROLLING, data, {"language": language_of(episode), "words": words}, problem)


def _prompt(text: str, data: dict[str, str], facts: dict[str, object], problem: str | None) -> Messages:
    correction = _CORRECTION if problem else ""
    return fenced_prompt(_SYSTEM, text + correction, data, {**facts, "problem": problem_line(problem or "")})
