"""The demo: follows one conversation from its messages to what an agent recalls, then replays the others."""

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from afterword.embedded import DownloadProgress
from afterword.local.dev import deployment, served_at, until_told_to_stop
from afterword.reading.memory import Context, Memory
from afterword.reading.watch import watch
from afterword.samples import interleaved
from afterword.schemas import MessageCreated, SummaryCreated
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings
from afterword.streams.text.visible import many, shown
from afterword.terminal import Screen, context_lines
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
MESSAGES_SHOWN = 8
"""Number of the story's messages to print. The others are only counted."""
NEXT = (
    ("afterword dev", "the same with data that stays; then, in another terminal:"),
    ("afterword produce FILE", "your own messages, one JSON object per line"),
    ("afterword watch", "summaries as they arrive"),
    ("afterword context ID", "what an agent would load for a conversation"),
    ("afterword recall TEXT", "what is known about a user: --user dana"),
    ("afterword audit", "is every message in exactly one episode?"),
    ("docs/tutorial.md", "ten minutes from the first message to its summary"),
    ("README.md", "your own Kafka, stores and LLM"),
)


class DemoIncomplete(AfterwordError):
    """{summarized} of {expected} messages were summarized after {seconds:.0f} seconds; the logs are in {logs}"""


@contextmanager
def temporary_directory(story: "Story", parent: Path | None = None) -> Iterator[Path]:
    """Create a directory, and remove it unless something failed and its logs may help."""
    directory = Path(tempfile.mkdtemp(prefix="afterword-demo-", dir=parent))
    try:
        yield directory
    except AfterwordError:
        story.has_failed = True
        raise
    finally:
        if not story.has_failed:
            shutil.rmtree(directory, ignore_errors=True)


class Story:
    """Prints what happens to a conversation, in numbered steps."""

    def __init__(self, screen: Screen, keep_serving: bool) -> None:
        self.screen = screen
        self.keep_serving = keep_serving
        """Whether everything keeps running until SIGINT or SIGTERM."""
        self.has_failed = False
        self._steps = 0
        self._messages = 0

    def doing(self, text: str) -> None:
        self._hidden_messages()
        self.screen.doing(text)

    def step(self, text: str) -> None:
        self._hidden_messages()
        self._steps += 1
        self.screen.line()
        self.screen.line(shown(f"{self._steps}. {text}."), "bold")

    def message(self, message: MessageCreated) -> None:
        self._messages += 1
        self.screen.doing(f"sent: {self._messages}", live=True)
        if self._messages <= MESSAGES_SHOWN:
            self.screen.row(message.role, shown(message.content))

    def _hidden_messages(self) -> None:
        if self._messages > MESSAGES_SHOWN:
            self.screen.row("…", f"{self._messages - MESSAGES_SHOWN} more")
        self._messages = 0

    def failed(self, name: str, what: str) -> None:
        self.has_failed = True
        self.screen.line(f"{name} {what}", "red")

    def finished(self, arrivals: "Arrivals", address: str) -> None:
        screen, conversations = self.screen, {event.conversation_id for event in arrivals.summaries}
        screen.doing("")
        screen.line(
            f"{arrivals.summarized()} messages of {len(conversations)} conversations became {len(arrivals.summaries)} "
            "episodes; each is stored, indexed and announced."
        )
        screen.line()
        screen.line("Where to look next", "bold")
        for command, what in NEXT:
            screen.row(command, what, label_width=24)
        if self.keep_serving:
            self.step("Now you: say something about yourself, and see what is remembered in the next conversation")
            screen.row("chat", f"{address}/chat", "bold")
            screen.line()
            screen.line(f"See everything at {address}/", "bold")
            screen.doing("serving until Ctrl-C")


async def demo(directory: Path, lines: Sequence[bytes], progress: DownloadProgress, story: Story) -> None:
    """Tell the story, replay the other `lines` (JSON messages), and wait until each message is in a summary.

    Raises: DemoIncomplete.
    """
    async with deployment(directory, progress, story.failed, story.doing, once=True) as settings:
        arrivals = Arrivals(expected=check_lines(lines).messages + 1)  # plus the question
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await _play(settings, lines, arrivals, story)
                address = await served_at(settings)
        except TimeoutError:
            raise DemoIncomplete(
                seconds=TIMEOUT_SECONDS,
                summarized=arrivals.summarized(),
                expected=arrivals.expected,
                logs=directory / "logs",
            ) from None
        story.finished(arrivals, address)
        if story.keep_serving:
            await until_told_to_stop()


@dataclass
class Arrivals:
    """The first revisions of summaries that have arrived, and a way to wait for more."""

    expected: int
    """Number of messages that will be summarized."""
    summaries: list[SummaryCreated] = field(default_factory=list)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def of_story(self) -> list[SummaryCreated]:
        return [event for event in self.summaries if event.conversation_id == STORY]

    def summarized(self) -> int:
        return sum(event.message_count for event in self.summaries)

    async def collect(self, settings: Settings) -> None:
        async with aclosing(watch(settings, from_beginning=True)) as events:
            async for event in events:
                if isinstance(event, SummaryCreated) and event.revision == 1:
                    async with self._changed:
                        self.summaries.append(event)
                        self._changed.notify_all()

    async def until(self, fulfilled: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(fulfilled)


async def _play(settings: Settings, lines: Sequence[bytes], arrivals: Arrivals, story: Story) -> None:
    messages = [MessageCreated.model_validate_json(line) for line in lines]
    told = [message for message in messages if message.conversation_id == STORY]
    others = [line for line, message in zip(lines, messages, strict=True) if message.conversation_id != STORY]
    async with AsyncExitStack() as running:
        memory = await running.enter_async_context(Memory.from_settings(settings))
        running.callback(asyncio.create_task(arrivals.collect(settings)).cancel)
        await _tell(settings, told, arrivals, memory, story)
        replay = asyncio.create_task(
            produce(settings, interleaved(others, CONVERSATIONS_AT_A_TIME), rate=MESSAGES_PER_SECOND, flush=True)
        )
        running.callback(replay.cancel)
        story.step("The other conversations")

        def complete() -> bool:
            done = f"{arrivals.summarized()} of {arrivals.expected} messages are in {len(arrivals.summaries)} summaries"
            story.screen.doing(done, live=True)
            return arrivals.summarized() >= arrivals.expected

        await arrivals.until(complete)


async def _tell(
    settings: Settings, said: Sequence[MessageCreated], arrivals: Arrivals, memory: Memory, story: Story
) -> None:
    user, screen = said[0].user_id, story.screen
    story.step(f"{user} writes to an assistant; each message is a record of the topic `messages`")
    await produce(
        settings,
        [message.to_json() for message in said],
        _each(said, story.message),
        rate=STORY_MESSAGES_PER_SECOND,
        flush=True,
    )
    story.doing("waiting for segmenter and summarizer")
    await arrivals.until(lambda: sum(event.message_count for event in arrivals.of_story()) >= len(said))
    story.step("The segmenter closes episodes where the topic shifts")
    for episode in arrivals.of_story():
        minutes = f"{episode.started_at:%Y-%m-%d %H:%M:%S} to {episode.ended_at:%H:%M:%S}"
        count = many(episode.message_count, "message", "messages")
        screen.row(f"episode {episode.ordinal}", f"{count}, {minutes}")
    story.step("The summarizer summarizes each episode, here without an LLM: from exchanges of the conversation")
    for summary in arrivals.of_story():
        screen.row(f"episode {summary.ordinal}", shown(summary.title), "bold")
        screen.row("", shown(summary.short_summary))
    story.doing("waiting for the archiver")
    context = await _context(memory, len(said))
    story.step(f"When {user} comes back, an agent with a budget of {CONTEXT_TOKENS} tokens loads this context")
    screen.row("$", f"afterword context {context.conversation_id} --max-tokens {CONTEXT_TOKENS}", "cyan")
    for line in "\n".join(context_lines(context)).splitlines():
        screen.row("", line)
    await _ask(settings, user, memory, story)


async def _ask(settings: Settings, user: str, memory: Memory, story: Story) -> None:
    screen = story.screen
    story.step(f"In a new conversation {user} asks a question, and the agent recalls what was said in the old one")
    question = {"id": "1", "conversation_id": LATER, "user_id": user, "role": "user", "content": QUESTION}
    # recall before the question is summarized, or its own summary would be found first
    hits = await memory.recall(QUESTION, user_id=user, tenant_id=None, k=HITS)
    screen.row("user", QUESTION)
    for hit in hits:
        screen.row("recalled", f"{hit.ended_at:%Y-%m-%d}, {shown(hit.conversation_id)}, score {hit.score:.2f}")
        for match in hit.matches[:1]:
            screen.row(match.role, shown(match.content), "bold")
        screen.row("", shown(hit.short_summary))
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
