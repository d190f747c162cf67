"""Figures read from the texts in /proc."""

import os
import subprocess
import sys

from benchmarks.processes import cpu_seconds_of, family, proportional_bytes, status_bytes, written_bytes_of

TICKS = os.sysconf("SC_CLK_TCK")


def test_cpu_time_is_that_of_user_and_system_whatever_the_process_is_called() -> None:
    stat = f"42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 {3 * TICKS} {TICKS // 2} 99 99"
    assert cpu_seconds_of(stat) == 3.5


def test_sizes_are_told_in_bytes() -> None:
    status = "Name:\tpython\nVmHWM:\t   2048 kB\nVmRSS:\t    100 kB\nThreads:\t3\n"
    assert status_bytes(status, "VmRSS") == 102_400
    assert status_bytes(status, "VmHWM") == 2 << 20


def test_what_the_disk_wrote_is_not_what_the_process_passed_to_write() -> None:
    assert written_bytes_of("rchar: 1\nwchar: 2\nread_bytes: 3\nwrite_bytes: 4\ncancelled_write_bytes: 5\n") == 4


def test_a_family_is_a_process_with_all_that_it_started_directly_or_not() -> None:
    inner = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", inner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout
        assert outer.stdout.readline() == b"1\n"
        found = family(outer.pid)
        assert (found[0], len(found)) == (outer.pid, 2)
        assert 0 < proportional_bytes(found[:1]) < proportional_bytes(found)
        outer.communicate(b"\n")
