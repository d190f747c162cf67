"""The demo: follows one conversation from its messages to what an agent recalls, then replays the others."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import orjson

from afterword.embedded import DownloadProgress
from afterword.local.dev import deployment, served_at, until_told_to_stop
from afterword.reading.context import Context
from afterword.reading.memory import Memory
from afterword.reading.watch import watch
from afterword.samples import interleaved
from afterword.schemas import EpisodeClosed, InvalidRecord, MessageCreated, SummaryCreated, decode_episode
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka.clients import running_consumer
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.index import Recalled
from afterword.writing.produce import Produced, check_lines, produce

TIMEOUT_SECONDS = 180.0
STORY = "superseg_validation_850"
"""The sample conversation that the demo follows."""
QUESTION = "Can I send it to my local GI Bill office?"
"""The question that its user later asks in another conversation."""
LATER = "two-weeks-later"
"""The id of that other conversation."""
CONTEXT_TOKENS = 200
HITS = 2
STORY_MESSAGES_PER_SECOND = 5.0
MESSAGES_PER_SECOND = 40.0
CONVERSATIONS_AT_A_TIME = 4
LOOK_SECONDS = 0.2


Arrived = TypeVar("Arrived", EpisodeClosed, SummaryCreated)


class DemoIncomplete(AfterwordError):
    """{summarised} of {expected} messages were summarized after {seconds:.0f} seconds; the logs are in {logs}"""


@dataclass(frozen=True)
class Shown:
    """The figures that the demo prints at its end."""

    messages: int
    conversations: int
    episodes: int
    address: str
    """Address of the server, where everything can be seen."""


class Show(Protocol):
    """Prints the story and its progress."""

    def doing(self, text: str) -> None: ...  # what is being waited for
    def step(self, text: str) -> None: ...
    def message(self, message: MessageCreated) -> None: ...
    def episode(self, event: EpisodeClosed) -> None: ...
    def summary(self, event: SummaryCreated) -> None: ...
    def context(self, found: Context) -> None: ...
    def recalled(self, question: str, hits: Sequence[Recalled]) -> None: ...
    def counted(self, summarised: int, messages: int, summaries: int) -> None: ...
    def failed(self, name: str, what: str) -> None: ...
    def finished(self, done: Shown) -> None: ...


async def demo(
    directory: Path, lines: Sequence[bytes], progress: DownloadProgress, show: Show, keep_serving: bool
) -> None:
    """Tell the story, replay the other `lines` (JSON messages), and wait until each message is in a summary.

    If `keep_serving` is true, everything keeps running until SIGINT or SIGTERM. Raises: DemoIncomplete.
    """
    async with deployment(directory, progress, show.failed, show.doing, once=True) as settings:
        arrivals = Arrivals(expected=check_lines(lines).messages + 1)  # plus the question
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await _play(settings, lines, arrivals, show)
                address = await served_at(settings)
        except TimeoutError:
            raise DemoIncomplete(
                seconds=TIMEOUT_SECONDS,
                summarised=arrivals.summarised(),
                expected=arrivals.expected,
                logs=directory / "logs",
            ) from None
        conversations = {event.conversation_id for event in arrivals.summaries}
        show.finished(Shown(arrivals.summarised(), len(conversations), len(arrivals.summaries), address))
        if keep_serving:
            await until_told_to_stop()


@dataclass
class Arrivals:
    """The episodes and first revisions of summaries that have arrived, and a way to wait for more."""

    expected: int
    """Number of messages that will be summarized."""
    episodes: list[EpisodeClosed] = field(default_factory=list)
    summaries: list[SummaryCreated] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of(self, conversation_id: str) -> tuple[list[EpisodeClosed], list[SummaryCreated]]:
        """Return the events of one conversation, in order."""
        episodes = [event for event in self.episodes if event.conversation_id == conversation_id]
        summaries = [event for event in self.summaries if event.conversation_id == conversation_id]
        return episodes, summaries

    def summarised(self) -> int:
        return sum(event.message_count for event in self.summaries)

    async def collect_episodes(self, kafka: Kafka) -> None:
        async with running_consumer(kafka, kafka.episodes_topic, auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                try:
                    event = decode_episode(record.key, record.value, record.headers)
                except InvalidRecord:  # an amendment
                    continue
                await self._add(self.episodes, event)

    async def collect_summaries(self, settings: Settings) -> None:
        async with aclosing(watch(settings, from_beginning=True)) as events:
            async for event in events:
                if isinstance(event, SummaryCreated) and event.revision == 1:
                    await self._add(self.summaries, event)

    async def until(self, fulfilled: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(fulfilled)

    async def _add(self, known: list[Arrived], event: Arrived) -> None:
        async with self._changed:
            known.append(event)
            self._changed.notify_all()


async def _play(settings: Settings, lines: Sequence[bytes], arrivals: Arrivals, show: Show) -> None:
    messages = [MessageCreated.model_validate_json(line) for line in lines]
    told = [message for message in messages if message.conversation_id == STORY]
    others = [line for line, message in zip(lines, messages, strict=True) if message.conversation_id != STORY]
    async with AsyncExitStack() as running:
        memory = await running.enter_async_context(Memory.from_settings(settings))
        for work in (arrivals.collect_episodes(settings.kafka), arrivals.collect_summaries(settings)):
            task: asyncio.Task[object] = asyncio.create_task(work)
            running.callback(task.cancel)
        await _tell(settings, told, arrivals, memory, show)
        replay = asyncio.create_task(
            produce(settings, interleaved(others, CONVERSATIONS_AT_A_TIME), rate=MESSAGES_PER_SECOND, flush=True)
        )
        running.callback(replay.cancel)
        show.step("The other conversations")

        def complete() -> bool:
            show.counted(arrivals.summarised(), arrivals.expected, len(arrivals.summaries))
            return arrivals.summarised() >= arrivals.expected

        await arrivals.until(complete)


async def _tell(
    settings: Settings, said: Sequence[MessageCreated], arrivals: Arrivals, memory: Memory, show: Show
) -> None:
    user = said[0].user_id
    show.step(f"{user} writes to an assistant; each message is a record of the topic `messages`")
    await produce(
        settings,
        [message.to_json() for message in said],
        _each(said, show.message),
        rate=STORY_MESSAGES_PER_SECOND,
        flush=True,
    )
    show.doing("waiting for the segmenter")
    await arrivals.until(lambda: sum(event.message_count for event in arrivals.of(STORY)[0]) >= len(said))
    show.step("The segmenter closes episodes where the topic shifts")
    for episode in arrivals.of(STORY)[0]:
        show.episode(episode)
    show.doing("waiting for the summarizer")
    await arrivals.until(lambda: sum(event.message_count for event in arrivals.of(STORY)[1]) >= len(said))
    show.step("The summarizer summarizes each episode, here without an LLM: from exchanges of the conversation")
    for summary in arrivals.of(STORY)[1]:
        show.summary(summary)
    show.doing("waiting for the archiver")
    context = await _context(memory, len(said))
    show.step(f"When {user} comes back, an agent with a budget of {CONTEXT_TOKENS} tokens loads this context")
    show.context(context)
    await _ask(settings, user, memory, show)


async def _ask(settings: Settings, user: str, memory: Memory, show: Show) -> None:
    show.step(f"In a new conversation {user} asks a question, and the agent recalls what was said in the old one")
    question = {"id": "1", "conversation_id": LATER, "user_id": user, "role": "user", "content": QUESTION}
    # recall before the question is summarized, or its own summary would be found first
    show.recalled(QUESTION, await memory.recall(QUESTION, user_id=user, tenant_id=None, k=HITS))
    await produce(settings, [orjson.dumps(question)], flush=True)


def _each(said: Sequence[MessageCreated], show: Callable[[MessageCreated], None]) -> Callable[[Produced], None]:
    """Show each message as it is sent, but no flushes."""
    left = iter(said)

    def progress(produced: Produced) -> None:
        if not produced.flushes and (message := next(left, None)):
            show(message)

    return progress


async def _context(memory: Memory, messages: int) -> Context:
    while True:
        found = await memory.context(STORY, max_tokens=CONTEXT_TOKENS)
        if found and found.messages and found.events_full >= messages:
            return found
        await asyncio.sleep(LOOK_SECONDS)
