"""Texts that nobody writes but anybody can send: every reader's time and memory grow linearly with their length."""

import gc
import math
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from zlib import crc32

import orjson
import pytest

from afterword.reading.context import Summaries, fit, fit_into
from afterword.reading.search import excerpt
from afterword.schemas import EpisodeClosed
from afterword.schemas.dead_letters import one_line
from afterword.schemas.records import InvalidRecord, decode_input
from afterword.streams.errors import AfterwordError
from afterword.streams.http import retry_after_seconds
from afterword.streams.settings import Llm, Redaction
from afterword.streams.stores.index import MOST_QUERY_CHARACTERS, SearchText
from afterword.streams.stores.packing import pack_words
from afterword.streams.stores.qdrant import query_vector
from afterword.streams.summarizer.llm import ChatRequest, Reply
from afterword.streams.summarizer.long_input import plan_of
from afterword.streams.summarizer.prompt import TEMPLATES, json_prompt, long_prompt, short_prompt
from afterword.streams.summarizer.summary import SummaryRequest
from afterword_text.answer import (
    AnswerUnusable,
    Limits,
    is_refusal,
    own_turn,
    read_answer,
    read_plain,
    without_thinking,
)
from afterword_text.corrections import likelihoods
from afterword_text.extractive import condense, summarize
from afterword_text.extractive.ranking import informativeness, is_politeness, is_question
from afterword_text.fences import problem_line
from afterword_text.gate import Evidence, SourceTexts, assess
from afterword_text.gate import plain as plain_text
from afterword_text.gate.claims import facts, fold, names, source_facts
from afterword_text.gate.quantities import readable
from afterword_text.language import detect, normalized, plausible, query_words, stem_words, subject_of, words
from afterword_text.sentences import cut_at_sentence, cut_at_word, first_sentences, split_sentences, without_middle
from afterword_text.statements import first_person
from afterword_text.texts import FIELDS, Texts
from afterword_text.times import asked_time, time_alone
from afterword_text.tokens import count_tokens
from afterword_text.visible import strip_control_tokens, without_surrogates
from tests.doubles.llm import an_llm_provider
from tests.nasty_texts import RUNS, mixed, run
from tests.samples import a_message
from tests.unit.summarizer.conversations import an_episode_of

LENGTHS = (1_000, 4_000, 16_000)
"""Characters of a run: what is quadratic takes 16 times as long for the next length, what is linear four times."""
FLOOR_SECONDS = 0.003
"""CPU time of 4,000 characters that nobody has to explain: what is quadratic takes 90 s for LONGEST then."""
MOST_GROWTH = 8
OF_A_PUSH = 12
"""Number of the runs that a change is tested with; all at night."""
ATTEMPTS = 6
"""Measurements of which the shortest counts."""
MIXED = (25_000, 100_000)
LONGEST = 700_000
"""The longest text that a message can have."""
MOST_RULERS = 180
"""Most CPU time for a mixed text of that length, in rulers: 6 s where one takes 0.033 s. Measured where it is expected
to take CHEAP_RULERS; else computed."""
CHEAP_RULERS = 15
RULER_STEPS = 1_000_000
LIMITS = Limits(20)
CONTENT = "Bob ordered 12 hats on 3 May. They cost $40 in all."

REFUSALS = AfterwordError, AnswerUnusable, InvalidRecord, UnicodeEncodeError

Reader = Callable[[str], object]


def an_episode(text: str) -> EpisodeClosed:
    return an_episode_of(("user", text), ("assistant", "Fine."), ("tool", text))


def many_messages(text: str) -> EpisodeClosed:
    size = max(1, len(text) // 10)
    return an_episode_of(*(("user" if n % 2 else "assistant", text[n * size : (n + 1) * size]) for n in range(10)))


class Silent:
    """A protocol that is never asked."""

    name = "silent"

    async def chat(self, request: ChatRequest) -> Reply:
        raise AssertionError

    async def check(self) -> None: ...


def planned(text: str) -> object:
    room = an_llm_provider(Silent(), Llm(provider="openai", model="m", context_tokens=4096)).room
    return plan_of(SummaryRequest(an_episode(text), text, 800), room)


def answer_with(text: str) -> str:
    return orjson.dumps(dict.fromkeys(FIELDS, without_surrogates(text))).decode()


def in_a_record(text: str) -> object:
    message = {"id": "m", "conversation_id": "c", "user_id": "u", "role": "user", "content": without_surrogates(text)}
    return decode_input(None, orjson.dumps(message), [], 0)


def as_a_record(text: str) -> object:
    return decode_input(None, text.encode(errors="replace"), [], 0)


READERS: dict[str, Reader] = {
    "language": detect,
    "plausible languages": plausible,
    "normalisation": partial(normalized, "NFKC"),
    "decomposition": partial(normalized, "NFKD"),
    "words": words,
    "stems": lambda text: stem_words(text, "en"),
    "German stems": lambda text: stem_words(text, "de"),
    "tokens": count_tokens,
    "sentences": split_sentences,
    "first sentences": lambda text: first_sentences(text, 3),
    "cut at a word": lambda text: cut_at_word(text, max(1, len(text) - 5)),
    "cut at a sentence": lambda text: cut_at_sentence(text, max(1, len(text) - 5)),
    "cut in the middle": lambda text: without_middle(text, 100),
    "control tokens": strip_control_tokens,
    "redaction": Redaction(patterns={"TICKET": r"T-\d+"}).redactor().redacted,
    "refusal": is_refusal,
    "own turn": own_turn,
    "own turn after a sentence": lambda text: own_turn(f"Done.{text}"),
    "plain text after a sentence": lambda text: read_plain(f"Done.{text}", "long_summary", LIMITS, 5),
    "thinking": without_thinking,
    "answer": lambda text: read_answer(text, LIMITS),
    "answer of an object": lambda text: read_answer(f"{{{text}}}", LIMITS),
    "answer of fields": lambda text: read_answer(answer_with(text), LIMITS),
    "plain title": lambda text: read_plain(text, "title", LIMITS),
    "plain long summary": lambda text: read_plain(text, "long_summary", LIMITS, 5),
    "plain short summary": lambda text: read_plain(f"Summary: {text}", "short_summary", LIMITS, 2),
    "plain rolling summary": lambda text: read_plain(text, "rolling_summary", LIMITS),
    "condensed": lambda text: condense(text, 20),
    "extractive summary": lambda text: summarize(an_episode(text), text, 20),
    "extractive summary of many": lambda text: summarize(many_messages(text), "", 20),
    "informativeness": informativeness,
    "politeness": lambda text: is_politeness(text, 1),
    "question": is_question,
    "facts": lambda text: facts(text, "en"),
    "facts of a source": lambda text: source_facts(text, frozenset(words(text)), "en"),
    "facts of a source with times": lambda text: source_facts(text, frozenset(), "en", [datetime.now(UTC)]),
    "number words": lambda text: readable(text, "en"),
    "names": lambda text: names(text, "en"),
    "German names": lambda text: names(text, "de"),
    "folded": fold,
    "plain text": plain_text,
    "evidence": lambda text: Evidence(text, "en"),
    "time of a question": lambda text: asked_time(text, datetime.now(UTC)),
    "check of a source": lambda text: assess(SourceTexts(text, by_speaker=(text,)), Texts("Hats", CONTENT, CONTENT)),
    "check of a summary": lambda text: assess(SourceTexts(CONTENT * 20), Texts("Hats", text[:400], text[:4000], text)),
    "check of a context": lambda text: assess(
        SourceTexts(CONTENT, text, text, instructions=CONTENT), Texts("Hats", CONTENT, CONTENT, CONTENT)
    ),
    "structured prompt": lambda text: json_prompt(SummaryRequest(an_episode(text), text, 400)),
    "plain prompt": lambda text: long_prompt(TEMPLATES["plain_3_5"], an_episode(text), text, text),
    "prompt of a summary": lambda text: short_prompt(an_episode("Hello"), text, None),
    "problem": problem_line,
    "plan of a long input": planned,
    "words of a document": lambda text: pack_words([SearchText(text)], text),
    "what people say of themselves": lambda text: first_person([a_message(content=text)]),
    "correction": lambda text: likelihoods([text], text, ["de"]),
    "time alone": lambda text: time_alone(text, None),
    "excerpt": lambda text: excerpt(text, query_words(CONTENT)),
    "excerpt for a query": lambda text: excerpt(CONTENT * 20, query_words(subject_of(text[:MOST_QUERY_CHARACTERS]))),
    "vector of a query": lambda text: query_vector(text[:MOST_QUERY_CHARACTERS]),
    "context": lambda text: fit([a_message(content=text or "a"), a_message("m2")], {"m1", "m2"}, 60),
    "summaries in a context": lambda text: fit_into(Summaries(text, text, (text,)), 60),
    "error message": one_line,
    "retry-after": lambda text: retry_after_seconds(text, datetime.now(UTC)),
    "record": as_a_record,
    "content of a record": in_a_record,
}
"""Everything that reads foreign text, by purpose."""


def cpu_seconds(read: Reader, text: str) -> float:
    gc.disable()  # it may run in the middle of any of them
    began = time.thread_time()
    try:
        with suppress(*REFUSALS):  # a text may be refused, but soon
            read(text)
        return time.thread_time() - began
    finally:
        gc.enable()


def rulers(read: Reader, text: str) -> float:
    """Measure the CPU time of a text in that of a loop beside it, which is as slow as the machine is; the least of a
    few measurements that are more than enough."""
    found = math.inf
    for _ in range(ATTEMPTS):
        ruler = cpu_seconds(lambda _: sum(n * n for n in range(RULER_STEPS)), "")
        found = min(found, cpu_seconds(read, text) / ruler)
        if found * LONGEST / len(text) < MOST_RULERS:
            break
    return found


def grows(read: Reader, shorter: str, longer: str, floor_seconds: float) -> str | None:
    """Compare the shortest times of a text and of one that is four times as long, without what any text takes.

    Returns None as soon as the longer one takes at most MOST_GROWTH times as long: only what is too slow is measured
    again, and nothing that a busy machine adds once counts.
    """
    none = short = long = math.inf
    for _ in range(ATTEMPTS):
        long = min(long, cpu_seconds(read, longer))
        if long <= floor_seconds:
            return None
        none, short = min(none, cpu_seconds(read, "")), min(short, cpu_seconds(read, shorter))
        if long - min(none, short) <= MOST_GROWTH * (short - min(none, short)) + floor_seconds:
            return None
    return f"{longer[:20]!r}: {none:.4f} s without a text, {short:.4f} s, {long:.4f} s"


def is_too_slow(read: Reader, unit: str) -> str | None:
    """Compare three lengths of a run; a reader may have more to do from some length on, but not again and again."""
    short, middle, long = (run(unit, length) for length in LENGTHS)
    return grows(read, short, middle, FLOOR_SECONDS) and grows(read, middle, long, FLOOR_SECONDS)


@pytest.mark.timeout(1200)  # a pattern that is exponential never ends
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("units", [OF_A_PUSH, pytest.param(len(RUNS), marks=pytest.mark.nightly)])
def test_every_reader_takes_linear_time(name: str, units: int) -> None:
    read = READERS[name]
    cpu_seconds(read, CONTENT)  # loads models and tables
    # each reader has its own, so that all are tried on some reader
    chosen = [*RUNS, *RUNS][crc32(name.encode()) % len(RUNS) :][:units]
    assert [found for unit in chosen if (found := is_too_slow(read, unit))] == []
    shorter, longer = map(mixed, MIXED)
    assert grows(read, shorter, longer, 0.1) is None
    expected = rulers(read, longer) * LONGEST / len(longer)
    assert (rulers(read, mixed(LONGEST)) if expected < CHEAP_RULERS else expected) < MOST_RULERS


@pytest.mark.timeout(100)  # 26 s for a quarter of it, when it was stemmed
def test_impossible_word_is_not_stemmed() -> None:
    word = "ab" * 1_000_000
    assert stem_words(word, "de") == [word]


def test_long_word_takes_no_more_memory_than_short_ones() -> None:
    """One of 20,000 letters took 200 MB in each conversation being summarized."""
    Evidence("warm", "en")
    tracemalloc.start()
    try:
        Evidence("a" * 20_000, "en")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6
