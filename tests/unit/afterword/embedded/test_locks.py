"""Each directory has one stack at a time, for as long as any of its processes lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from afterword.embedded.claims import DirectoryInUse, DirectoryLock
from tests.processes import alive

OWNER = """
import subprocess, sys
from pathlib import Path
from afterword.embedded.claims import DirectoryLock
lock = DirectoryLock(Path(sys.argv[1]))
lock.acquire()
"""
CHILD = """
print(subprocess.Popen(["sleep", "0.5"], pass_fds=[lock.fd], stdout=subprocess.DEVNULL).pid)
"""


def test_a_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    first, second = DirectoryLock(tmp_path), DirectoryLock(tmp_path)
    first.acquire()
    with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_a_dead_owner_holds_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OWNER, str(tmp_path)], check=True)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    lock.release()


def test_the_children_of_a_dead_owner_are_waited_for(tmp_path: Path) -> None:
    owner = [sys.executable, "-c", OWNER + CHILD, str(tmp_path)]
    done = subprocess.run(owner, check=True, capture_output=True, text=True)
    lock = DirectoryLock(tmp_path)
    lock.acquire()
    assert not alive(int(done.stdout))
    lock.release()
