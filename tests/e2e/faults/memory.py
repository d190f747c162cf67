"""Memory of workers."""

from contextlib import suppress
from pathlib import Path

from afterword.embedded.process import Process
from tests.e2e.faults.world import World

MOST_MEGABYTES = 1000


def megabytes(world: World, role: str) -> int:
    """Return the resident set of the role's largest worker."""
    return max((resident(world.worker(name)) for name in world.running(role)), default=0)


def resident(process: Process) -> int:
    """Return the resident set, or 0 if the process is gone."""
    return _read(process, "VmRSS")


def peak(process: Process) -> int:
    """Return the kernel's peak of the resident set since the last call in megabytes, or 0 if the process is gone."""
    found = _read(process, "VmHWM")
    with suppress(OSError):
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # resets the peak
    return found


def _read(process: Process, name: str) -> int:
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in status.splitlines() if line.startswith(name)]
    return int(found[0].split()[1]) // 1024 if found else 0
