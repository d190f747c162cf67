"""What the embedded servers have in common: they can be stopped, killed, suspended and started again."""

from abc import ABC, abstractmethod

from afterword.embedded.process import Process


class Server(ABC):
    """A process that may be started more than once, always on the same port and data."""

    def __init__(self) -> None:
        self._process: Process | None = None

    @abstractmethod
    def _launch(self) -> Process: ...

    @property
    def process(self) -> Process:
        """The latest one. Raises: RuntimeError before the first start."""
        if self._process is None:
            raise RuntimeError(f"{type(self).__name__} was never started")
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    def start(self) -> None:
        """Unless it runs. Does not wait until it answers, but may block for a second before the very first start."""
        if not self.running:
            self.stop()  # lets go of one that died by itself
            self._process = self._launch()

    def stop(self) -> None:
        """In order; blocks."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """SIGKILL; on return it is gone."""
        self.process.kill()

    def suspend(self) -> None:
        self.process.suspend()

    def resume(self) -> None:
        self.process.resume()
