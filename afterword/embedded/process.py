"""A child process that leaves nothing behind."""

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from afterword.embedded.errors import ProcessExited

TAIL_CHARACTERS = 2_000
STOP_SECONDS = 20.0

WATCHDOG = 'read -r _; kill -s KILL -- "-$1"'
"""POSIX sh (dash takes no `kill -9 --`): `read` returns when whoever holds the other end of the pipe is gone, however
it died."""


class Process:
    """A command with a log file, in a session of its own, so that Ctrl-C in a terminal reaches only its parent.

    It does not outlive its parent: a tiny watchdog kills its process group when the parent is gone. (Linux's
    parent-death signal is no substitute: it fires when the *thread* ends that started the child.) Standard input is a
    pipe that closes with the parent too.
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
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._child = subprocess.Popen(  # noqa: S603 – our own command line, no shell
                command,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
                pass_fds=tuple(pass_fds),
            )
        self._watchdog = _watch(self._child.pid)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; −n when signal n ended it."""
        return self._child.poll()

    @property
    def running(self) -> bool:
        return self.returncode is None

    def check(self) -> None:
        """Raises: ProcessExited, with the end of its log."""
        if not self.running:
            raise ProcessExited(name=self.name, code=self.returncode, log=self.log, tail=self.tail())

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-TAIL_CHARACTERS:]

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises: subprocess.TimeoutExpired."""
        return self._child.wait(timeout)

    def stop(self, timeout: float = STOP_SECONDS) -> int:
        """SIGTERM, and SIGKILL when it has not gone within `timeout` seconds; blocks. Returns its exit code."""
        self._child.send_signal(signal.SIGTERM)  # to it alone: ending its children in order is its own business
        self._signal(signal.SIGCONT)  # a suspended process would sleep through the first
        try:
            self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
        return self._reap()

    def kill(self) -> None:
        """SIGKILL; on return it is gone."""
        self._signal(signal.SIGKILL)
        self._reap()

    def suspend(self) -> None:
        """SIGSTOP: it stays, and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may go between the two lines
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
