"""`afterword demo` on a terminal, from its first line to Ctrl-C."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import Popen

import httpx
import pytest

from afterword.local.demo import CHATS, QUESTIONS, USER

pytestmark = pytest.mark.nightly

SECONDS = 180.0
FIRST_LINE_SECONDS = 10.0
"""The first line must be shown within this time on a busy machine; on an idle one it takes less than a second."""
END_SECONDS = 30.0
COLUMNS = 100
COMMANDS_OF_A_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal, and its output so far."""

    def __init__(self, process: Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self._shown = b""

    def text(self) -> str:
        with suppress(BlockingIOError, OSError):
            while more := os.read(self._fd, 1 << 16):
                self._shown += more
        return COMMANDS_OF_A_TERMINAL.sub("", self._shown.decode(errors="replace")).replace("\r", "\n")

    async def until(self, text: str, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while text not in (shown := self.text()):
            assert time.monotonic() < deadline, shown
            assert self.process.poll() is None, shown
            await asyncio.sleep(0.1)
        return shown

    def press_ctrl_c(self) -> None:
        os.write(self._fd, b"\x03")

    async def end(self, seconds: float) -> int:
        """Wait for the exit code while reading, because a process that cannot write does not end."""
        deadline = time.monotonic() + seconds
        while (code := self.process.poll()) is None:
            self.text()
            assert time.monotonic() < deadline
            await asyncio.sleep(0.1)
        return code


@contextmanager
def on_a_terminal(*arguments: str, environment: dict[str, str]) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
    os.set_blocking(ours, False)

    def take_the_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    command = [sys.executable, "-m", "afterword", *arguments]
    process = Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, preexec_fn=take_the_terminal)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


@pytest.mark.timeout(400)
async def test_demo_recalls_one_persons_chats_until_ctrl_c() -> None:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_") and name != "CI"
    }
    with on_a_terminal("demo", environment={**inherited, "TERM": "xterm"}) as terminal:
        await terminal.until("starting", FIRST_LINE_SECONDS)
        shown = await terminal.until("serving until Ctrl-C", SECONDS)
        steps = re.findall(r"^(\d)\. ", shown, re.M)
        assert steps == ["1", "2", "3", "4", "5", "6"]
        told = " ".join(re.sub(r"[^ -~]", " ", shown).split())
        assert [f"({chat.name}-1)" in told for chat in CHATS] == [True] * len(CHATS)
        remembered = told[told.index("4. What is remembered") : told.index("5. Later")]
        assert "northern lights in Norway next winter (trip-3)" in remembered
        assert "I prefer trains and ferries (trip-5)" in remembered
        assert re.search(r"I live in Leeds \(trip-1, until [-0-9]+: I just moved to Bristol", remembered)
        assert re.search(r"I am vegetarian \(dinner-3, until [-0-9]+: I am not vegetarian any more", remembered)
        asked = told[told.index("5. Later") : told.index("Where to look next")]
        parts = re.split("|".join(map(re.escape, QUESTIONS)), asked)[1:]
        recalled = ["(trip-3)", "(trip-5)", "(dinner-1)", "(present-3)", "(present-1)", "never talked about this"]
        assert [place in part for place, part in zip(recalled, parts, strict=True)] == [True] * len(QUESTIONS), asked
        assert max(map(len, shown.splitlines())) <= COLUMNS + 2

        [address] = re.findall(r"See everything at (\S+)", shown)
        async with httpx.AsyncClient(follow_redirects=True) as client:
            page = await client.get(address)
            [chat] = re.findall(rf"chat +({re.escape(address)}chat)", shown)
            assert (await client.get(chat)).status_code == 200
            listed = await client.get(f"{address}v1/conversations?user_id={USER}")
        assert page.headers["content-type"].startswith("text/html")
        assert {entry["conversation_id"] for entry in listed.json()["conversations"]} == {
            f"{USER}-{chat.name}" for chat in CHATS
        }

        terminal.press_ctrl_c()
        assert await terminal.end(END_SECONDS) == 0
        assert "Traceback" not in terminal.text()
