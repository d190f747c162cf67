"""An episode longer than the LLM's context is still read to its end."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeMessage, Quality, Usage
from afterword.schemas.summaries import total
from afterword.streams.errors import ContextExceeded, ProviderError
from afterword.streams.summarizer.long_input import MOST_PARTS, TOOL_OUTPUT_CHARACTERS
from afterword.streams.summarizer.prompt import json_prompt
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from afterword_text.extractive import condense
from afterword_text.tokens import count_tokens, groups, packed
from tests.rows import with_rows
from tests.samples import a_closed_episode, an_episode_message, some_calls
from tests.unit.summarizer.conversations import an_episode_of

USAGE = Usage(prompt_tokens=10, completion_tokens=1)


class Reader:
    """A provider with room for a few real prompts."""

    name = "reader"

    def __init__(self, context_tokens: int, failing: tuple[int, ...] = (), message_tokens: int = 0) -> None:
        """`failing`: numbers of calls; `message_tokens`: what each message takes beside what one can see of it."""
        self.context_tokens = context_tokens
        self.message_tokens = message_tokens
        self.hangs = False
        """Calls that do not fail do not end either."""
        self.requests: list[SummaryRequest] = []
        self.most_running = 0
        self.called = asyncio.Event()
        self._failing = failing
        self.running = 0

    def room(self, request: SummaryRequest) -> int:
        hidden = self.message_tokens * len(request.episode.messages)
        return self.context_tokens - hidden - sum(count_tokens(message["content"]) for message in _prompt(request))

    async def summarize(self, request: SummaryRequest) -> Summary:
        self.requests.append(request)
        self.called.set()
        number = len(self.requests)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await asyncio.sleep(0)
            if self.hangs and number not in self._failing:
                await asyncio.Event().wait()
            return self._summary(request, number)
        finally:
            self.running -= 1

    async def check(self) -> None: ...

    async def close(self) -> None: ...

    @property
    def read(self) -> list[EpisodeMessage]:
        """Messages of episodes, in the order in which they were asked about; what stands for parts is left out."""
        messages = (message for request in self.requests for message in request.episode.messages)
        return [message for message in messages if not message.id.startswith("part-")]

    def _summary(self, request: SummaryRequest, number: int) -> Summary:
        request.calls.extend(some_calls(USAGE))
        if self.room(request) < 0:
            raise ProviderError(problem="context_length_exceeded")
        if number in self._failing:
            raise ProviderError(problem="it failed")
        told = f"Told by call {number}: {' '.join(m.content[:250] for m in request.episode.messages)}"[:1000]
        rolling = condense(f"{request.previous_rolling}\n{told}", request.rolling_tokens)
        return Summary(
            title=f"Call {number}",
            short_summary=told[:400],
            long_summary=told,
            rolling_summary=rolling if request.wants_rolling else request.previous_rolling,
            quality=Quality(source="llm"),
            model=self.name,
        )


def _prompt(request: SummaryRequest) -> list[dict[str, str]]:
    return json_prompt(request, request.problem)


CONTEXT = 2600
"""Tokens of a context, of which instructions take some 500."""


def request_of(*turns: tuple[str, str], **fields: Any) -> SummaryRequest:
    return SummaryRequest(an_episode_of(*turns), **{"previous_rolling": "Before.", "rolling_tokens": 800, **fields})


def reading(reader: Reader) -> Summarizer:
    return Summarizer(reader, room=reader.room)


async def summarize(reader: Reader, request: SummaryRequest) -> Summary:
    return await reading(reader).summarize_without_fallback(request)


def long_talk(turns: int, words: int = 120) -> list[tuple[str, str]]:
    return [("user" if n % 2 else "assistant", f"Fact {n}. " + f"w{n} " * words) for n in range(turns)]


def ids(request: SummaryRequest) -> list[str]:
    return [message.id for message in request.episode.messages]


async def test_fitting_episode_is_one_unchanged_call() -> None:
    reader, request = Reader(CONTEXT), request_of(("user", "Hello"), ("assistant", "Hi"))
    summary = await summarize(reader, request)
    assert [request.episode.messages for request in reader.requests] == [request.episode.messages]
    assert not summary.quality.truncated


async def test_longer_episode_is_read_once_in_ordered_parts() -> None:
    reader = Reader(CONTEXT)
    episode = an_episode_of(*long_talk(12), overlap=(an_episode_message("o1"),))
    request = SummaryRequest(episode, "The user is called Ada.", 800, problem="it named a number that nobody said")
    summary = await summarize(reader, request)
    assert tuple(reader.read) == episode.messages
    *parts, last = reader.requests
    assert len(parts) > 1
    assert [asked.wants_rolling for asked in reader.requests] == [False] * len(parts) + [True]
    told = {(asked.previous_rolling, asked.problem) for asked in reader.requests}
    assert told == {(request.previous_rolling, request.problem)}
    assert parts[0].episode.overlap == last.episode.overlap == episode.overlap
    for before, part in pairwise(parts):
        assert [message.id for message in part.episode.overlap] == ids(before)[-2:]
    texts = [message.content.partition(": ")[0] for message in last.episode.messages]
    assert texts == [f"Summary of part {n} of {len(parts)}" for n in range(1, len(parts) + 1)]
    assert summary.title == f"Call {len(reader.requests)}"
    assert summary.rolling_summary.startswith("The user is called Ada.")
    assert "Summary of part 1" in summary.rolling_summary
    assert summary.usage.prompt_tokens == USAGE.prompt_tokens * len(reader.requests)
    assert not summary.quality.truncated


async def test_part_lasts_from_earliest_to_latest_message() -> None:
    reader, request = Reader(CONTEXT), request_of(*long_talk(12))
    backwards = request.episode.model_copy(update={"messages": request.episode.messages[::-1]})
    await summarize(reader, replace(request, episode=backwards))
    assert len(reader.requests) > 1
    assert all(part.episode.started_at <= part.episode.ended_at for part in reader.requests)


async def test_unwanted_rolling_summary_is_not_requested() -> None:
    reader = Reader(CONTEXT)
    await summarize(reader, request_of(*long_talk(12), wants_rolling=False))
    assert not any(request.wants_rolling for request in reader.requests)


class SmallerServer(Reader):
    """Its server has a quarter of the context that the settings promise."""

    async def summarize(self, request: SummaryRequest) -> Summary:
        if self.room(request) < self.context_tokens * 3 // 4:
            self.refused = getattr(self, "refused", 0) + 1
            raise ContextExceeded(status=400)
        return await super().summarize(request)


async def test_episode_beyond_the_context_is_read_in_parts() -> None:
    reader, request = SmallerServer(4 * CONTEXT), request_of(*long_talk(12))
    assert reader.room(request) >= 0
    await summarize(reader, request)
    assert {message.id for message in reader.read} == {message.id for message in request.episode.messages}
    assert reader.refused <= 4


async def test_prompt_that_no_context_holds_is_given_up() -> None:
    reader = SmallerServer(4 * 300)
    with pytest.raises(ContextExceeded):
        await summarize(reader, request_of(("user", "Hello"), ("assistant", "Hi")))
    assert reader.refused <= 5


@pytest.mark.parametrize(("failing", "least"), [((1,), 1), ((2,), 1), ((1, 2), 2), ((-1,), 0)])
async def test_failed_part_fails_the_summary_and_reports_its_tokens(failing: tuple[int, ...], least: int) -> None:
    undisturbed = Reader(CONTEXT)
    await summarize(undisturbed, request_of(*long_talk(12)))
    last = len(undisturbed.requests)
    reader = Reader(CONTEXT, failing=tuple(one % (last + 1) for one in failing))
    request = request_of(*long_talk(12))
    with pytest.raises(ProviderError, match="it failed"):
        await summarize(reader, request)
    spent = total(request.calls).prompt_tokens
    assert USAGE.prompt_tokens * (least or last) <= spent <= USAGE.prompt_tokens * len(reader.requests)


async def test_failing_part_cancels_the_others() -> None:
    reader = Reader(CONTEXT, failing=(2,))
    reader.hangs = True
    async with asyncio.timeout(120):
        with pytest.raises(ProviderError, match="it failed"):
            await summarize(reader, request_of(*long_talk(12)))
    assert reader.most_running > 1
    assert reader.running == 0


async def test_parts_that_prove_too_long_are_cut_smaller() -> None:
    reader, request = Reader(CONTEXT, message_tokens=80), request_of(*long_talk(40, words=20))
    await summarize(reader, request)
    assert all(reader.room(asked) >= 0 for asked in reader.requests)
    assert tuple(reader.read) == request.episode.messages


async def test_parts_run_concurrently_for_one_long_episode() -> None:
    reader = Reader(CONTEXT)
    long_input = reading(reader)
    await asyncio.gather(*(long_input.summarize_without_fallback(request_of(*long_talk(12))) for _ in range(3)))
    parts = len(reader.requests) // 3 - 1
    assert reader.most_running == parts > 1


async def test_cancelled_summary_leaves_no_call() -> None:
    reader = Reader(CONTEXT)
    task = asyncio.create_task(reading(reader).summarize_without_fallback(request_of(*long_talk(12))))
    await asyncio.wait_for(reader.called.wait(), 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert reader.running == 0


async def test_summaries_of_many_parts_are_combined_in_parts() -> None:
    reader, request = Reader(1300), request_of(*long_talk(16, words=60))
    summary = await summarize(reader, request)
    combining = [request for request in reader.requests if ids(request)[0].startswith("part-")]
    assert len(combining) > 2
    assert [request.wants_rolling for request in combining] == [False] * (len(combining) - 1) + [True]
    assert tuple(reader.read) == request.episode.messages
    assert not summary.quality.truncated


async def test_huge_message_loses_its_middle_and_says_so() -> None:
    text = "It begins here. " + "word " * 140_000 + "It ends there."
    reader = Reader(CONTEXT)
    began = time.process_time()
    summary = await summarize(reader, request_of(("user", "Please read this."), ("user", text)))
    assert time.process_time() - began < 60
    assert summary.quality.truncated
    (shown,) = [message.content for message in reader.read if message.id == "m1"]
    assert shown.startswith("It begins here.")
    assert shown.endswith("It ends there.")
    assert "characters left out …]" in shown
    assert len(shown) > 1000


@pytest.mark.parametrize("text", ["字" * 230_000, "a" * 700_000, "\n" * 350_000 + "x", "😀" * 170_000])
async def test_any_huge_message_finally_fits(text: str) -> None:
    reader = Reader(CONTEXT)
    await summarize(reader, request_of(("user", text), ("assistant", "All read.")))
    assert {message.id for message in reader.read} == {"m0", "m1"}


async def test_longest_messages_are_shortened_to_avoid_many_parts() -> None:
    reader, request = Reader(CONTEXT), request_of(*long_talk(60, words=400), ("user", "Thanks!"))
    summary = await summarize(reader, request)
    assert sum(bool(request.episode.messages[0].id[0] == "m") for request in reader.requests) <= MOST_PARTS
    assert [message.id for message in reader.read] == ids(request)
    assert reader.read[-1].content == "Thanks!"
    assert summary.quality.truncated


async def test_tool_call_and_its_results_are_read_together() -> None:
    turns = [("user", "x " * 250), ("assistant", "I look it up."), ("tool", "y " * 100), ("tool", "z " * 100)] * 6
    messages = tuple(
        an_episode_message(f"m{n}", n, role=role, content=text, tools=("search",) if role == "assistant" else ())
        for n, (role, text) in enumerate(turns)
    )
    reader = Reader(1500)
    await summarize(reader, SummaryRequest(a_closed_episode(messages=messages, overlap=()), "", 800))
    parts = [ids(request) for request in reader.requests if ids(request)[0].startswith("m")]
    assert len(parts) > 2
    for call in range(1, len(turns), 4):
        together = {f"m{call}", f"m{call + 1}", f"m{call + 2}"}
        assert sum(together <= set(part) for part in parts) == 1


async def test_long_tool_output_is_always_shortened() -> None:
    output = "Row 1 of the table. " + "0 " * 5000 + "Row 9999."
    reader = Reader(50_000)
    episode = an_episode_of(
        ("assistant", output), ("tool", output), overlap=(an_episode_message("o", role="tool", content=output),)
    )
    summary = await summarize(reader, SummaryRequest(episode, "", 800))
    (asked,) = reader.requests
    assistant, tool = asked.episode.messages
    assert assistant.content == output
    for shown in (tool.content, asked.episode.overlap[0].content):
        assert len(shown) < TOOL_OUTPUT_CHARACTERS + 60
        assert shown.startswith("Row 1")
        assert shown.endswith("Row 9999.")
    assert not summary.quality.truncated


async def test_long_overlap_and_previous_summary_leave_space() -> None:
    overlap = tuple(an_episode_message(f"o{n}", content="overlap " * 3000) for n in range(2))
    episode = an_episode_of(("user", "Only this counts."), overlap=overlap)
    reader = Reader(CONTEXT)
    summary = await summarize(reader, SummaryRequest(episode, "It was said before. " * 2000, 800))
    (asked,) = reader.requests
    assert asked.episode.messages == episode.messages
    assert len(asked.episode.overlap) == 2
    assert asked.previous_rolling.startswith("It was said before.")
    assert not summary.quality.truncated


async def test_context_too_small_for_the_instructions_is_an_error() -> None:
    reader = Reader(200)
    with pytest.raises(ProviderError):
        await summarize(reader, request_of(*long_talk(30)))
    assert len(reader.requests) <= 2 * MOST_PARTS


ROLES = st.sampled_from(["user", "assistant", "tool", "system"])
TEXTS = st.one_of(
    st.text(max_size=300),
    st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=20), st.integers(1, 400)),
)


@given(st.lists(st.tuples(ROLES, TEXTS), min_size=1, max_size=30), st.integers(1200, 4000), TEXTS)
async def test_every_message_is_read_once_within_the_prompt_limit(
    turns: list[tuple[str, str]], context: int, previous: str
) -> None:
    reader = Reader(context)
    request = request_of(*turns, previous_rolling=previous)
    await summarize(reader, request)
    assert [message.id for message in reader.read] == ids(request)
    assert all(reader.room(asked) >= 0 for asked in reader.requests)
    assert reader.requests[-1].wants_rolling


async def test_same_episode_is_cut_the_same_way() -> None:
    first, second = Reader(CONTEXT), Reader(CONTEXT)
    request = request_of(*long_talk(12))
    for reader in (first, second):
        await summarize(reader, replace(request))
    assert first.requests == second.requests


LETTERS = {"u": "user", "a": "assistant", "s": "system", "t": "tool", "c": "assistant", "f": "user"}


def said(letters: str) -> list[EpisodeMessage]:
    """u user, a assistant, s system, t tool; c an assistant and f a user whose message names tools."""
    return [
        an_episode_message(f"m{n}", role=LETTERS[letter], tools=("search",) if letter in "cf" else ())
        for n, letter in enumerate(letters)
    ]


@with_rows
def test_call_and_its_results_are_one_group(letters: str, kept_together: list[str]) -> None:
    assert [letters[run.start : run.stop] for run in groups(said(letters))] == kept_together


@given(st.text(alphabet="uastcf", max_size=40))
def test_every_message_is_in_one_group(letters: str) -> None:
    runs = groups(said(letters))
    assert [at for run in runs for at in run] == list(range(len(letters)))
    assert all(letters[run.start] != "t" for run in runs[1:])


@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 60))
def test_runs_are_ordered_few_and_fit_if_possible(sizes: list[int], room: int) -> None:
    runs = packed(sizes, room)
    assert [at for run in runs for at in run] == list(range(len(sizes)))
    totals = [sum(sizes[at] for at in run) for run in runs]
    assert all(total <= room or len(run) == 1 for total, run in zip(totals, runs, strict=True))
    if max(sizes, default=0) <= room:
        assert len(runs) <= 2 * sum(sizes) // room + 1


def test_runs_are_even() -> None:
    assert packed([10] * 11, 100) == [range(6), range(6, 11)]
    assert packed([90, 10, 10, 90], 100) == [range(2), range(2, 4)]
    assert packed([], 100) == []
