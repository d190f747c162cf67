"""Each directory has one stack at a time, for as long as any of its processes lives."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from afterword.embedded.claims import DirectoryInUse, locked_directory
from tests.processes import alive

OWNER = """
import os, subprocess, sys
from pathlib import Path
from afterword.embedded.claims import locked_directory
with locked_directory(Path(sys.argv[1])) as lock:
    {then}
    os._exit(0)
"""
CHILD = """print(subprocess.Popen(["sleep", "0.5"], pass_fds=[lock], stdout=subprocess.DEVNULL).pid, flush=True)"""


def test_directory_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with locked_directory(tmp_path), pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
        locked_directory(tmp_path).__enter__()
    with locked_directory(tmp_path):
        pass


def test_dead_owner_holds_no_lock(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OWNER.format(then="pass"), str(tmp_path)], check=True)
    with locked_directory(tmp_path):
        pass


def test_children_of_a_dead_owner_are_awaited(tmp_path: Path) -> None:
    owner = [sys.executable, "-c", OWNER.format(then=CHILD), str(tmp_path)]
    done = subprocess.run(owner, check=True, capture_output=True, text=True)
    with locked_directory(tmp_path):
        assert not alive(int(done.stdout))
