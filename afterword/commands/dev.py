"""`afterword dev` and `afterword demo`: a whole deployment on this machine."""

import asyncio
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from afterword.commands.common import Screen, start_quietly
from afterword.commands.memory import context_lines
from afterword.extras import extra_required
from afterword.streams.visible import many, shown

if TYPE_CHECKING:
    from afterword.context import Context
    from afterword.demo import Show, Shown
    from afterword.embedded import DownloadProgress
    from afterword.schemas import EpisodeClosed, MessageCreated, SummaryCreated
    from afterword.streams.stores.index import Recalled


Directory = Annotated[Path, typer.Option("--data-dir", help="Directory of the data, which survives a restart.")]

MESSAGES_SHOWN = 8
"""Messages of the story that are printed; the others are counted."""
MILLION = 1_000_000


def dev(data_dir: Directory = Path(".afterword")) -> None:
    """Run Kafka, MongoDB, Qdrant and a worker of each role in the foreground, until Ctrl-C; say what arrives."""
    with suppress(KeyboardInterrupt), Screen() as screen:
        screen.doing("starting")
        with extra_required("dev", "afterword dev"):
            from afterword.dev import dev as run

        start_quietly()
        asyncio.run(run(data_dir, _downloads(screen), screen.line, screen.doing))


def demo() -> None:
    """Run everything in a temporary directory, follow a sample conversation from its messages to what is recalled of
    it, replay the others, and end.
    """
    from afterword.samples import sample_lines

    with Screen() as screen, tempfile.TemporaryDirectory(prefix="afterword-demo-") as name:
        screen.line("Afterword on this machine: a Kafka, a MongoDB server and three workers, in a temporary directory.")
        screen.doing("starting")
        with extra_required("dev", "afterword demo"):
            from afterword.demo import demo as run

        start_quietly()
        done = asyncio.run(run(Path(name), sample_lines(), _downloads(screen), Story(screen).show()))
    _print_end(screen, done)


class Story:
    """Prints what happens to a conversation, in numbered steps."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._steps = 0
        self._messages = 0

    def show(self) -> "Show":
        from afterword.demo import Show

        return Show(
            doing=self._doing,
            step=self._step,
            message=self._message,
            episode=self._episode,
            summary=self._summary,
            context=self._context,
            recalled=self._recalled,
            counted=self._counted,
            failed=self._failed,
        )

    def _doing(self, text: str) -> None:
        self._hidden_messages()
        self._screen.doing(text)

    def _step(self, text: str) -> None:
        self._hidden_messages()
        self._steps += 1
        self._screen.line()
        self._screen.line(shown(f"{self._steps}. {text}."), "bold")

    def _message(self, message: "MessageCreated") -> None:
        self._messages += 1
        self._screen.doing(f"sent: {self._messages}", live=True)
        if self._messages <= MESSAGES_SHOWN:
            self._screen.row(message.role, shown(message.content))

    def _hidden_messages(self) -> None:
        if self._messages > MESSAGES_SHOWN:
            self._screen.row("…", f"{self._messages - MESSAGES_SHOWN} more")
        self._messages = 0

    def _episode(self, event: "EpisodeClosed") -> None:
        minutes = f"{event.started_at:%Y-%m-%d %H:%M:%S} to {event.ended_at:%H:%M:%S}"
        self._screen.row(f"episode {event.ordinal}", f"{many(event.message_count, 'message', 'messages')}, {minutes}")

    def _summary(self, event: "SummaryCreated") -> None:
        self._screen.row(f"episode {event.ordinal}", shown(event.title), "bold")
        self._screen.row("", shown(event.short_summary))

    def _context(self, found: "Context") -> None:
        from afterword.demo import CONTEXT_TOKENS

        command = f"afterword context {found.conversation_id} --max-tokens {CONTEXT_TOKENS}"
        self._screen.row("$", command, "cyan")
        for line in context_lines(found):
            self._screen.row("", line)

    def _recalled(self, question: str, hits: "Sequence[Recalled]") -> None:
        self._screen.row("user", question)
        for hit in hits:
            self._screen.row(
                "recalled", f"{hit.ended_at:%Y-%m-%d}, {shown(hit.conversation_id)}, score {hit.score:.2f}"
            )
            self._screen.row("", shown(hit.short_summary), "bold")

    def _counted(self, summarised: int, messages: int, summaries: int) -> None:
        text = f"{summarised} of {messages} messages are in {summaries} summaries"
        self._screen.doing(text, live=True)

    def _failed(self, role: str, code: int, log: Path) -> None:
        self._screen.line(f"worker {role} exited with code {code}; see {log}", "red")


def _print_end(screen: Screen, done: "Shown") -> None:
    screen.line(
        f"{done.messages} messages of {done.conversations} conversations became {done.episodes} episodes; each is "
        "stored, indexed and announced."
    )
    screen.line()
    screen.line("Where to look next", "bold")
    for command, what in (
        ("afterword dev", "the same with data that stays; then, in another terminal:"),
        ("afterword produce FILE", "your own messages, one JSON object a line"),
        ("afterword watch", "summaries as they arrive"),
        ("afterword context ID", "what an agent would load of a conversation"),
        ("afterword recall TEXT", "what is known of a user: --user dana --no-tenant"),
        ("afterword audit", "is every message in exactly one episode?"),
        ("docs/tutorial.md", "ten minutes, from the first message to its summary"),
        ("README.md", "your own Kafka, stores and LLM"),
    ):
        screen.row(command, what, label_width=24)


def _downloads(screen: Screen) -> "DownloadProgress":
    """Show the downloads of the first start, if there are any."""

    def report(name: str, done: int, total: int) -> None:
        if done < total:
            screen.doing(f"fetching {name}, {done / MILLION:.0f} of {total / MILLION:.0f} MB", live=True)

    return report
