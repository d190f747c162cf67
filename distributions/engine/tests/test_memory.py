import resource
import sys
from pathlib import Path

import pytest

from faust_eos.options import return_freed_memory


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_is_returned_despite_fragmentation() -> None:
    blocks = [bytes(100_000) for _ in range(500)]
    last = blocks.pop()
    before = resident_bytes()
    del blocks
    return_freed_memory()
    assert before - resident_bytes() > 25_000_000
    assert len(last) == 100_000


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
