"""Child processes and servers: start them, stop or kill them, and wait until they answer."""

import asyncio
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aiokafka.errors import KafkaError

from afterword.streams.errors import AfterwordError
from afterword.streams.private import OWNER_ONLY, private_directory

TAIL_CHARACTERS = 2_000
STOP_SECONDS = 20.0
READY_SECONDS = 120.0
"""A cold start takes 3 s on an idle machine, but test machines are busy."""
POLL_SECONDS = 0.05

Probe = Callable[[], Awaitable[None]]

WATCHDOG = 'read -r _; kill -s KILL -- "-$1"'
"""A script for POSIX sh (dash has no `kill -9 --`). `read` returns when the process at the other end of the pipe has
ended, for whatever reason."""


class ProcessExited(AfterwordError):
    """{name} exited with {code}; the end of {log}:\n{tail}"""


class StartTimeout(AfterwordError):
    """{name} was not ready within {seconds:g} seconds ({problem}); the end of {log}:\n{tail}"""


class Process:
    """A command with a log file, in its own session, so that Ctrl-C in a terminal only reaches its parent.

    It does not outlive its parent: a small watchdog process kills its process group when the parent has ended. (Linux's
    parent-death signal would fire when the *thread* that started the child ends.) Standard input is a pipe that also
    closes with the parent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        pass_fds: Collection[int] = (),
    ) -> None:
        self.name = name
        self.log = log
        private_directory(log.parent)
        with log.open("ab") as output:
            self._child = subprocess.Popen(  # noqa: S603 – our own command line, no shell
                command,
                bufsize=0,  # nothing that nobody has read is left when it is closed
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
                umask=OWNER_ONLY,  # the files hold conversations
            )
        self._watchdog = _watch(self._child.pid)

    @property
    def pid(self) -> int:
        return self._child.pid

    def tell(self, line: bytes) -> None:
        """Write a line to its standard input, unless it has exited."""
        if self._child.stdin is not None:
            with suppress(BrokenPipeError):
                self._child.stdin.write(line + b"\n")

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it is running, −n if signal n ended it."""
        return self._child.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def check(self) -> None:
        """Check that the process is running. Raises: ProcessExited, with the end of its log."""
        if not self.running:
            raise ProcessExited(name=self.name, code=self.returncode, log=self.log, tail=self.tail())

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL_CHARACTERS:]

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises: subprocess.TimeoutExpired."""
        return self._child.wait(timeout)

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """Send SIGTERM, then SIGKILL after `timeout` seconds; blocks. Returns the exit code."""
        self._child.send_signal(signal.SIGTERM)  # sent only to the process itself, which ends its children in order
        self._signal(signal.SIGCONT)  # a suspended process would not receive SIGTERM
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        return self._reap()

    def kill(self) -> None:
        """Send SIGKILL and wait for its end."""
        self._signal(signal.SIGKILL)
        self._reap()

    def suspend(self) -> None:
        """Send SIGSTOP: the process keeps its connections but stops answering."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # the process may exit between these lines
            if self.running:
                os.killpg(self._child.pid, number)

    def _reap(self) -> int:
        code = self._child.wait()
        _close(self._child)
        self._watchdog.kill()
        self._watchdog.wait()
        _close(self._watchdog)
        return code


def _watch(group: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 – a constant script and a number
        ["/bin/sh", "-c", WATCHDOG, "watchdog", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _close(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()


class Server(ABC):
    """A process that can be started repeatedly, always with the same port and data."""

    process: Process
    """The latest process, after the first start."""

    @abstractmethod
    def _launch(self) -> Process: ...

    @property
    def running(self) -> bool:
        return hasattr(self, "process") and self.process.running

    def start(self) -> None:
        """Start the server unless it is running, without waiting for an answer.

        The first start may block for a second.
        """
        if not self.running:
            self.stop()  # reaps a process that died by itself
            self.process = self._launch()

    def stop(self) -> None:
        """Stop the server gracefully; blocks."""
        if hasattr(self, "process"):
            self.process.stop()


class NotReady(Exception):
    """The server does not yet answer as expected."""


async def until_ready(process: Process, probe: Probe, seconds: float = READY_SECONDS) -> None:
    """Wait until the probe succeeds. Raises: ProcessExited, StartTimeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await probe()
        except (OSError, KafkaError, NotReady) as error:
            problem = str(error) or type(error).__name__
        process.check()
        if time.monotonic() > deadline:
            raise StartTimeout(
                name=process.name, seconds=seconds, problem=problem, log=process.log, tail=process.tail()
            )
        await asyncio.sleep(POLL_SECONDS)


async def accepts(host: str, port: int) -> None:
    """Connect once. Raises: OSError if nothing is listening."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    await writer.wait_closed()
