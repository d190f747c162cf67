"""Counts how many of an LLM's facts the gate keeps, and how many of these are right.

The messages are the labelled sentences of `benchmarks/data/first_person.tsv`, four in an episode. A fact is right if
each message that it names says something lasting about its speaker. That its words, figures and names are in these
messages is what the gate checks. `python -m tests.llm.facts` asks the LLM of the settings.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from opentelemetry.trace import NoOpTracer
from rich.console import Console
from rich.table import Table

from afterword.streams.settings import Llm, load_settings
from afterword.streams.summarizer.llm import Asking, make_client
from afterword.streams.summarizer.prompt import EPISODIC
from afterword.streams.summarizer.providers import StructuredQuestions
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.answer import AnswerUnusable, Limits, StatedFact, read_answer
from afterword_text.facts import grounded
from afterword_text.texts import FIELDS
from benchmarks.quality import labelled_sentences
from tests.doubles.llm import unread
from tests.samples import a_closed_episode, an_episode_message

EPISODES, MESSAGES = 50, 4
ANSWER_TOKENS = 300
"""Enough for the texts and some facts; a small model that does not end is cut off soon."""
ROLLING_TOKENS = 100


@dataclass
class Measured:
    """Counts over all episodes."""

    answers: int = 0
    """Number of usable answers."""
    stated: int = 0
    stated_right: int = 0
    kept: int = 0
    kept_right: int = 0

    def add(self, stated: tuple[StatedFact, ...], request: SummaryRequest, says_something: list[bool]) -> None:
        messages = request.episode.messages
        right = {message.id: is_fact for message, is_fact in zip(messages, says_something, strict=True)}
        kept = grounded(stated, messages)
        self.answers += 1
        self.stated += len(stated)
        self.stated_right += sum(_is_right(fact, says_something) for fact in stated)
        self.kept += len(kept)
        self.kept_right += sum(all(right[one] for one in fact.message_ids) for fact in kept)


def _is_right(fact: StatedFact, says_something: list[bool]) -> bool:
    known = [0 < number <= len(says_something) and says_something[number - 1] for number in fact.numbers]
    return bool(known) and all(known)


async def measured(llm: Llm) -> Measured:
    """Ask once for the summary of each episode. An answer that cannot be used states no facts."""
    client, found = make_client(llm, unread(), NoOpTracer()), Measured()
    questions = StructuredQuestions(EPISODIC, llm)
    read = partial(read_answer, limits=Limits(ROLLING_TOKENS), fields=FIELDS[:3])
    sample = labelled_sentences()[: EPISODES * MESSAGES]

    async def ask(first: int) -> None:
        some = sample[first : first + MESSAGES]
        messages = tuple(an_episode_message(f"m{n}", n, content=said) for n, (_, said) in enumerate(some))
        request = SummaryRequest(
            a_closed_episode(messages=messages, overlap=()), "", ROLLING_TOKENS, wants_rolling=False
        )
        [question] = questions.longest(request)
        try:
            answer = await client.answer(question, read, Asking(client, llm.retry_budget_seconds))
        except AnswerUnusable:
            return
        found.add(answer.facts or (), request, [is_fact for is_fact, _ in some])

    try:
        await asyncio.gather(*map(ask, range(0, len(sample), MESSAGES)))
    finally:
        await client.close()
    return found


def show(model: str, found: Measured) -> None:
    """Print the table of docs/quality.md."""
    table = Table("model", "usable answers", "facts stated", "right", "kept by the gate", "right")
    table.add_row(
        model,
        f"{found.answers} of {EPISODES}",
        str(found.stated),
        _share(found.stated_right, found.stated),
        f"{found.kept} ({_share(found.kept, found.stated)})",
        _share(found.kept_right, found.kept),
    )
    Console(width=120).print(table)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def main() -> None:
    llm = load_settings().llm
    show(llm.model or llm.provider, asyncio.run(measured(llm)))


if __name__ == "__main__":
    main()
