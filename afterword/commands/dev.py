"""`afterword dev` and `afterword demo`: a whole deployment on this machine."""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Screen, start_quietly
from afterword.commands.reading import context_lines
from afterword.extras import extra_required
from afterword.streams.errors import AfterwordError
from afterword.streams.text.visible import many, shown

if TYPE_CHECKING:
    from afterword.embedded import DownloadProgress
    from afterword.local.demo import Shown
    from afterword.reading.context import Context
    from afterword.schemas import EpisodeClosed, MessageCreated, SummaryCreated
    from afterword.streams.stores.index import Recalled


Directory = Annotated[Path, typer.Option("--data-dir", help="Directory for the data, which survives restarts.")]

MESSAGES_SHOWN = 8
"""Number of the story's messages to print. The others are only counted."""
MILLION = 1_000_000
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


def dev(data_dir: Directory = Path(".afterword")) -> None:
    """Run Kafka, the workers and the server in the foreground, with one SQLite file.

    Stop it with Ctrl-C.
    """
    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.doing("starting")
        with extra_required("dev", "afterword dev"):
            from afterword.local.dev import dev as run

        start_quietly()
        end_as_by_ctrl_c()
        asyncio.run(run(data_dir, _downloads(screen), screen.line, screen.doing))


def demo() -> None:
    """Run everything in a temporary directory, and follow a sample conversation from its messages to recall.

    Then replay the other sample conversations. On a terminal, it ends with a chat on the page, served until Ctrl-C.
    """
    from afterword.samples import sample_lines

    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.line("Afterword on this machine: Kafka, three workers and a server, in a temporary directory.")
        screen.doing("starting")
        with extra_required("dev", "afterword demo"):
            from afterword.local.demo import demo as run

        start_quietly()
        end_as_by_ctrl_c()
        watched = sys.stdin.isatty() and sys.stdout.isatty() and not os.environ.get("CI")
        story = Story(screen, keep_serving=watched)
        with temporary_directory(story) as directory:
            asyncio.run(run(directory, sample_lines(), _downloads(screen), story, story.keep_serving))


def end_as_by_ctrl_c() -> None:
    """Make SIGTERM, and SIGHUP from a closed terminal, act like Ctrl-C, unless they are ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: signal.raise_signal(signal.SIGINT))


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
        self.keep_serving = keep_serving
        self.has_failed = False
        self._screen = screen
        self._steps = 0
        self._messages = 0

    def doing(self, text: str) -> None:
        self._hidden_messages()
        self._screen.doing(text)

    def step(self, text: str) -> None:
        self._hidden_messages()
        self._steps += 1
        self._screen.line()
        self._screen.line(shown(f"{self._steps}. {text}."), "bold")

    def message(self, message: "MessageCreated") -> None:
        self._messages += 1
        self._screen.doing(f"sent: {self._messages}", live=True)
        if self._messages <= MESSAGES_SHOWN:
            self._screen.row(message.role, shown(message.content))

    def _hidden_messages(self) -> None:
        if self._messages > MESSAGES_SHOWN:
            self._screen.row("…", f"{self._messages - MESSAGES_SHOWN} more")
        self._messages = 0

    def episode(self, event: "EpisodeClosed") -> None:
        minutes = f"{event.started_at:%Y-%m-%d %H:%M:%S} to {event.ended_at:%H:%M:%S}"
        self._screen.row(f"episode {event.ordinal}", f"{many(event.message_count, 'message', 'messages')}, {minutes}")

    def summary(self, event: "SummaryCreated") -> None:
        self._screen.row(f"episode {event.ordinal}", shown(event.title), "bold")
        self._screen.row("", shown(event.short_summary))

    def context(self, found: "Context") -> None:
        from afterword.local.demo import CONTEXT_TOKENS

        command = f"afterword context {found.conversation_id} --max-tokens {CONTEXT_TOKENS}"
        self._screen.row("$", command, "cyan")
        for line in "\n".join(context_lines(found)).splitlines():
            self._screen.row("", line)

    def recalled(self, question: str, hits: "Sequence[Recalled]") -> None:
        self._screen.row("user", question)
        for hit in hits:
            self._screen.row(
                "recalled", f"{hit.ended_at:%Y-%m-%d}, {shown(hit.conversation_id)}, score {hit.score:.2f}"
            )
            for match in hit.matches[:1]:
                self._screen.row(match.role, shown(match.content), "bold")
            self._screen.row("", shown(hit.short_summary))

    def counted(self, summarised: int, messages: int, summaries: int) -> None:
        text = f"{summarised} of {messages} messages are in {summaries} summaries"
        self._screen.doing(text, live=True)

    def failed(self, name: str, what: str) -> None:
        self.has_failed = True
        self._screen.line(f"{name} {what}", "red")

    def finished(self, done: "Shown") -> None:
        self._screen.doing("")
        self._screen.line(
            f"{done.messages} messages of {done.conversations} conversations became {done.episodes} episodes; each is "
            "stored, indexed and announced."
        )
        self._screen.line()
        self._screen.line("Where to look next", "bold")
        for command, what in NEXT:
            self._screen.row(command, what, label_width=24)
        if self.keep_serving:
            self.step("Now you: say something about yourself, and see what is remembered in the next conversation")
            self._screen.row("chat", f"{done.address}/chat", "bold")
            self._screen.line()
            self._screen.line(f"See everything at {done.address}/", "bold")
            self._screen.doing("serving until Ctrl-C")


def _downloads(screen: Screen) -> "DownloadProgress":
    def report(name: str, done: int, total: int) -> None:
        if done < total:
            screen.doing(f"fetching {name}, {done / MILLION:.0f} of {total / MILLION:.0f} MB", live=True)

    return report
