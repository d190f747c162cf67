"""The demo: one person's three chats, what is remembered of them, and questions in other words."""

import asyncio
import shutil
import tempfile
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from afterword.consumers.subscriber import watching
from afterword.local.dev import deployment, served_at, until_told_to_stop
from afterword.reading.memory import Memory
from afterword.schemas import MessageCreated, SummaryCreated, SummaryDeleted
from afterword.streams.errors import AfterwordError
from afterword.streams.settings import Settings
from afterword.terminal import Screen
from afterword.writing.produce import Produced, produce
from afterword_text.visible import shown

TIMEOUT_SECONDS = 180.0
USER = "mara"


class Chat(NamedTuple):
    """A chat of the story, as it begins this many days ago. User and assistant speak in turn."""

    name: str
    what: str
    days_ago: int
    contents: Sequence[str]


_TOLD = tomllib.loads((files(__package__) / "story.toml").read_text(encoding="utf-8"))
CHATS = [Chat(**chat) for chat in _TOLD["chats"]]
QUESTIONS: list[str] = _TOLD["questions"]
"""What the user asks later, in other words than in the chats. No chat answers the last one."""
MESSAGES_PER_SECOND = 5.0
LOOK_SECONDS = 0.2


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
    """Prints what happens, in numbered steps."""

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
        screen.line()
        screen.line(
            f"{self.summarized} messages of {len(conversations)} conversations became {len(self.summaries)} "
            "episodes; each is stored, indexed and announced."
        )
        screen.line()
        screen.line("Where to look next", "bold")
        for command, what in _TOLD["next"].items():
            screen.row(command, what, label_width=24)
        if self.keep_serving:
            self.step("Now you: say something about yourself, and see what is remembered in the next conversation")
            screen.row("chat", f"{address}/chat", "bold")
            screen.line()
            screen.line(f"See everything at {address}/", "bold")
            screen.doing("serving until Ctrl-C")


def messages_of(chat: Chat, now: datetime) -> list[MessageCreated]:
    """Return the messages of a chat that began some days before `now`."""
    began = now - timedelta(days=chat.days_ago)
    return [
        MessageCreated(
            id=f"{chat.name}-{number}",
            conversation_id=f"{USER}-{chat.name}",
            user_id=USER,
            role="user" if number % 2 else "assistant",
            content=content,
            sent_at=began + timedelta(minutes=number),
        )
        for number, content in enumerate(chat.contents, start=1)
    ]


async def demo(directory: Path, story: Story) -> None:
    """Tell the story, show what is remembered, and recall it. Raises: DemoIncomplete."""
    now = datetime.now(UTC)
    chats = [(chat, messages_of(chat, now)) for chat in CHATS]
    expected = sum(len(messages) for _, messages in chats)
    async with deployment(directory, story.screen, story.failed, once=True) as settings:
        try:
            async with (
                asyncio.timeout(TIMEOUT_SECONDS),
                Memory.from_settings(settings) as memory,
                watching(settings.kafka, from_beginning=True) as events,
            ):
                for chat, messages in chats:
                    await _tell(settings, chat, messages, story)
                story.screen.doing("closing the episodes, and summarizing them without an LLM")
                await story.until_summarized(events, expected)
                await _until_archived(memory, [messages for _, messages in chats], story)
                await _show_profile(memory, story)
                await _ask(memory, story)
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


async def _tell(settings: Settings, chat: Chat, messages: Sequence[MessageCreated], story: Story) -> None:
    story.step(f"{messages[0].sent_at:%Y-%m-%d}: {chat.what}")

    def show(produced: Produced) -> None:
        if not produced.flushes:
            message = messages[produced.messages - 1]
            story.screen.row(message.role, f"{message.content}  ({message.id})")

    await produce(settings, [one.to_json() for one in messages], show, rate=MESSAGES_PER_SECOND, flush=True)


async def _until_archived(memory: Memory, chats: Sequence[Sequence[MessageCreated]], story: Story) -> None:
    story.screen.doing("waiting for the archiver")
    for messages in chats:
        page = None
        while not page or len(page.messages) < len(messages):
            await asyncio.sleep(LOOK_SECONDS)
            page = await memory.messages(messages[0].conversation_id)


async def _show_profile(memory: Memory, story: Story) -> None:
    profile = await memory.profile(USER, tenant_id=None)
    story.step("What is remembered, since when, and from which message")
    story.screen.row("$", f"afterword profile {USER}", "cyan")
    for fact in (*profile.facts, *profile.superseded):
        first, newest = fact.sources[-1], fact.sources[0]
        until = f", until {fact.superseded_at:%Y-%m-%d}: {fact.superseded_by}" if fact.superseded_at else ""
        story.screen.row(
            f"{first.ended_at:%Y-%m-%d}",
            shown(f"{fact.as_line().rstrip('.!')}  ({', '.join(newest.message_ids)}{until})"),
            "dim" if until else "bold",
        )


async def _ask(memory: Memory, story: Story) -> None:
    story.step("Later, Mara asks in other words; this is what her agent recalls first")
    for question in QUESTIONS:
        story.screen.row("user", question)
        story.screen.doing("recalling", live=True)
        hits = await memory.recall(question, user_id=USER, tenant_id=None, k=1)
        for match in (match for hit in hits for match in hit.matches[:1]):
            said = f"{match.sent_at:%Y-%m-%d}, {match.role}: {match.content}  ({match.message_id})"
            story.screen.row("recalled", shown(said), "bold")
        if not hits:
            story.screen.row("recalled", "nothing: she never talked about this", "bold")
