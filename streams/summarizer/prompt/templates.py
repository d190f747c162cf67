"""The presets, which are templates as users could write them. The text around a template is always the same."""

import hashlib
from dataclasses import dataclass
from typing import Literal

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
        """Return the preset and a hash of the whole prompt, of which `frame` is everything but the template."""
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
