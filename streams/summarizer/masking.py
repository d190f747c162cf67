"""Masking: an LLM is shown numbered placeholders, and the originals are put back into its answer.

Everything in a request is masked before anything is made of it: plan, prompts and fences.
"""

from dataclasses import replace
from typing import Any, TypeVar

from afterword.schemas import EpisodeMessage
from afterword.streams.redactor import Redactor, replaced
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword_text.answer import Limits
from afterword_text.texts import FIELDS

Placeholder = tuple[str, int]
"""Name and number of a placeholder."""
M = TypeVar("M", bound=EpisodeMessage)


class Masking:
    """The placeholders of one request, such as `[EMAIL_1]`, and what they stand for.

    Values are numbered in the order in which they occur in the previous summary, in the overlap, and in the messages.
    The same request gets the same placeholders, and a conversation keeps those in its previous summary.
    """

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._keys: dict[tuple[str, str], Placeholder] = {}
        """Placeholders by name and value."""
        self._values: dict[Placeholder, str] = {}
        self._counts: dict[str, int] = {}

    def masked(self, text: str) -> str:
        """Replace each entity with its placeholder.

        A text that looks like one of our placeholders is itself replaced with one, so that `restored` brings it back
        too.
        """
        parts: list[str] = []
        at = 0
        for known in self._redactor.numbered.finditer(text) if "[" in text else ():
            parts += self._without_entities(text[at : known.start()]), self._placeholder(known[1].upper(), known[0])
            at = known.end()
        return "".join([*parts, self._without_entities(text[at:])])

    def restored(self, text: str) -> str:
        """Put the originals back; an unknown placeholder stays as it is."""
        if not self._values:
            return text
        return self._redactor.numbered.sub(
            lambda match: self._values.get((match[1].upper(), int(match[2])), match[0]), text
        )

    def request(self, request: SummaryRequest) -> SummaryRequest:
        previous = self.masked(request.previous_rolling)
        overlap = tuple(map(self._message, request.episode.overlap))
        messages = tuple(map(self._message, request.episode.messages))
        episode = request.episode.model_copy(update={"messages": messages, "overlap": overlap})
        problem = None if request.problem is None else self.masked(request.problem)
        return replace(request, episode=episode, previous_rolling=previous, problem=problem)

    def summary(self, summary: Summary, request: SummaryRequest) -> Summary:
        """Return a masked request's summary with the originals, cut to its permitted lengths."""
        limits = Limits(request.rolling_tokens, request.max_summary_length)
        masked: dict[str, str] = {name: getattr(summary, name) for name in FIELDS}
        restored = {name: self.restored(text) for name, text in masked.items()}
        texts: dict[str, Any] = {
            name: limits.cut(name, text) for name, text in restored.items() if text != masked[name]
        }
        facts = tuple(
            fact.model_copy(
                update={"statement": self.restored(fact.statement), "about": fact.about and self.restored(fact.about)}
            )
            for fact in summary.facts
        )
        return replace(summary, **texts, facts=facts)

    def _message(self, message: M) -> M:
        shown = {"content": self.masked(message.content), "author": message.author and self.masked(message.author)}
        return message.model_copy(update=shown)

    def _without_entities(self, text: str) -> str:
        spans = self._redactor.spans(text)
        return replaced(text, spans, lambda span: self._placeholder(span.name, text[span.start : span.end]))

    def _placeholder(self, name: str, value: str) -> str:
        key = self._keys.get((name, value))
        if key is None:
            number = self._counts[name] = self._counts.get(name, 0) + 1
            key = self._keys[name, value] = name, number
            self._values[key] = value
        return f"[{key[0]}_{key[1]}]"
