"""The demo: follows one conversation from its messages to what an agent recalls, then replays the others."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import orjson

from afterword.consumers.subscriber import watching
from afterword.local.dev import deployment, served_at, until_told_to_stop
from afterword.reading.memory import Memory
from afterword.samples import interleaved
from afterword.schemas import MessageCreated, SummaryCreated, SummaryDeleted
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings
from afterword.streams.tasks import gather_or_cancel
from afterword.streams.text.visible import many, shown
from afterword.terminal import Screen, context_lines
from afterword.writing.produce import Produced, produce

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
        self.summaries: list[SummaryCreated] = []
        self._steps = 0

    def step(self, text: str) -> None:
        self._steps += 1
        self.screen.line()
        self.screen.line(shown(f"{self._steps}. {text}."), "bold")

    def failed(self, name: str, what: str) -> None:
        self.has_failed = True
        self.screen.line(f"{name} {what}", "red")

    @property
    def summarized(self) -> int:
        """The number of messages in the summaries."""
        return sum(summary.message_count for summary in self.summaries)

    async def until_summarized(self, events: AsyncIterator[SummaryCreated | SummaryDeleted], expected: int) -> None:
        """Collect summaries until they have this number of messages."""
        while self.summarized < expected:
            count = len(self.summaries)
            self.screen.doing(f"{self.summarized} of {expected} messages are in {count} summaries", live=True)
            event = await anext(events)
            if isinstance(event, SummaryCreated) and event.revision == 1:
                self.summaries.append(event)

    def finished(self, address: str) -> None:
        screen, conversations = self.screen, {summary.conversation_id for summary in self.summaries}
        screen.doing("")
        screen.line(
            f"{self.summarized} messages of {len(conversations)} conversations became {len(self.summaries)} "
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


async def demo(directory: Path, lines: Sequence[bytes], story: Story) -> None:
    """Tell the story, replay the other `lines` (JSON messages), and wait until each message is in a summary.

    Raises: DemoIncomplete.
    """
    messages = [MessageCreated.model_validate_json(line) for line in lines]
    expected = len(messages) + 1  # plus the question
    async with deployment(directory, story.screen, story.failed, once=True) as settings:
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                Memory.from_settings(settings) as memory,
                watching(settings.kafka, from_beginning=True) as events,
            ):
                told = [message for message in messages if message.conversation_id == STORY]
                await _tell(settings, told, events, memory, story)
                await _ask(settings, told[0].user_id, memory, story)
                story.step("The other conversations")
                others = [line for line, one in zip(lines, messages, strict=True) if one.conversation_id != STORY]
                mixed = interleaved(others, CONVERSATIONS_AT_A_TIME)
                await gather_or_cancel(
                    produce(settings, mixed, rate=MESSAGES_PER_SECOND, flush=True),
                    story.until_summarized(events, expected),
                )
                address = await served_at(settings)
        except TimeoutError:
            raise DemoIncomplete(
                seconds=TIMEOUT_SECONDS,
                summarized=story.summarized,
                expected=expected,
                logs=directory / "logs",
            ) from None
        story.finished(address)
        if story.keep_serving:
            await until_told_to_stop()


async def _tell(
    settings: Settings,
    said: Sequence[MessageCreated],
    events: AsyncIterator[SummaryCreated | SummaryDeleted],
    memory: Memory,
    story: Story,
) -> None:
    user, screen = said[0].user_id, story.screen
    story.step(f"{user} writes to an assistant; each message is a record of the topic `messages`")

    def show(produced: Produced) -> None:
        if not produced.flushes:
            message = said[produced.messages - 1]
            screen.row(message.role, shown(message.content))

    lines = [message.to_json() for message in said]
    await produce(settings, lines, show, rate=STORY_MESSAGES_PER_SECOND, flush=True)
    screen.doing("waiting for segmenter and summarizer")
    await story.until_summarized(events, len(said))
    story.step("The segmenter closes episodes where the topic shifts")
    for episode in story.summaries:
        minutes = f"{episode.started_at:%Y-%m-%d %H:%M:%S} to {episode.ended_at:%H:%M:%S}"
        count = many(episode.message_count, "message", "messages")
        screen.row(f"episode {episode.ordinal}", f"{count}, {minutes}")
    story.step("The summarizer summarizes each episode, here without an LLM: from exchanges of the conversation")
    for summary in story.summaries:
        screen.row(f"episode {summary.ordinal}", shown(summary.title), "bold")
        screen.row("", shown(summary.short_summary))
    screen.doing("waiting for the archiver")
    context = None
    while not (context and context.messages and context.events_full >= len(said)):
        await asyncio.sleep(LOOK_SECONDS)
        context = await memory.context(STORY, max_tokens=CONTEXT_TOKENS)
    story.step(f"When {user} comes back, an agent with a budget of {CONTEXT_TOKENS} tokens loads this context")
    screen.row("$", f"afterword context {context.conversation_id} --max-tokens {CONTEXT_TOKENS}", "cyan")
    for line in "\n".join(context_lines(context)).splitlines():
        screen.row("", line)


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
