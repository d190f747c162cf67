"""Demo: real conversations through the whole path, from an empty directory to summaries."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from pathlib import Path

from afterword.dev import deployment
from afterword.embedded import DownloadProgress
from afterword.produce import ProduceOptions, check_lines, produce
from afterword.schemas import EpisodeClosed, SummaryCreated, decode_episode
from afterword.streams.errors import AfterwordError
from afterword.streams.kafka import running_consumer
from afterword.streams.settings import Kafka, Settings
from afterword.watch import watch

TIMEOUT_SECONDS = 80.0
MESSAGES_PER_SECOND = 40.0
CONVERSATIONS_AT_A_TIME = 4


class DemoIncomplete(AfterwordError):
    """{summarised} of {expected} messages were summarized after {seconds:.0f} seconds; the logs are in {logs}"""


@dataclass(frozen=True)
class Shown:
    """Counts that the demo prints at its end."""

    messages: int
    conversations: int
    episodes: int
    last_conversation: str


@dataclass(frozen=True)
class Show:
    """Callbacks that print progress."""

    say: Callable[[str], None]
    episode: Callable[[EpisodeClosed], None]
    summary: Callable[[SummaryCreated], None]


async def demo(directory: Path, lines: Sequence[bytes], progress: DownloadProgress, show: Show) -> Shown:
    """Replay `lines` (JSON messages) and wait until each message is in a summary. Raises: DemoIncomplete."""

    def ended(role: str, code: int, file: Path) -> None:
        show.say(f"worker {role} exited with code {code}; see {file}")

    async with deployment(directory, progress, ended) as settings:
        show.say("Kafka, MongoDB and three workers are running. Replaying conversations:")
        return await _replay(settings, lines, show, directory / "logs")


async def _replay(settings: Settings, lines: Sequence[bytes], show: Show, logs: Path) -> Shown:
    done = _Done(expected=check_lines(lines).messages)
    options = ProduceOptions(rate=MESSAGES_PER_SECOND, flush=True, interleave=CONVERSATIONS_AT_A_TIME)
    async with AsyncExitStack() as running:
        for work in (_show_episodes(settings.kafka, show), produce(settings, lines, options)):
            task: asyncio.Task[object] = asyncio.create_task(work)
            running.callback(task.cancel)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await _until_summarised(settings, show, done)
        except TimeoutError:
            raise DemoIncomplete(
                seconds=TIMEOUT_SECONDS, summarised=done.messages, expected=done.expected, logs=logs
            ) from None
    return Shown(done.messages, len(done.conversations), done.episodes, done.last)


@dataclass
class _Done:
    expected: int
    messages: int = 0
    episodes: int = 0
    last: str = ""
    conversations: set[str] = field(default_factory=set)

    def count(self, event: SummaryCreated) -> None:
        if event.supersedes:  # its messages were counted before
            return
        self.messages += event.message_count
        self.episodes += 1
        self.conversations.add(event.conversation_id)
        self.last = event.conversation_id


async def _until_summarised(settings: Settings, show: Show, done: _Done) -> None:
    async with aclosing(watch(settings, from_beginning=True)) as events:
        async for event in events:
            if not isinstance(event, SummaryCreated):
                continue
            done.count(event)
            show.summary(event)
            if done.messages >= done.expected:
                return


async def _show_episodes(kafka: Kafka, show: Show) -> None:
    async with running_consumer(kafka, kafka.episodes_topic, auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            show.episode(decode_episode(record.key, record.value, record.headers))
