"""The memory of a role's threads."""

import subprocess
import sys

import pytest


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
@pytest.mark.parametrize(
    ("module", "role"),
    [("app", "run_segmenter"), ("summarizer_app", "run_summarizer")],
    ids=["segmenter", "summarizer"],
)
def test_threads_of_a_role_have_no_arenas_of_their_own(module: str, role: str) -> None:
    code = f"""
import asyncio, ctypes, threading
from afterword.streams.errors import BrokerUnavailable
from afterword.streams.{module} import {role}
from afterword.streams.settings import Settings
try:
    asyncio.run({role}(Settings(kafka=dict(bootstrap_servers="127.0.0.1:1"))))
except BrokerUnavailable:
    pass
allocate = ctypes.CDLL(None).malloc
allocate.restype = ctypes.c_void_p
places = [allocate(64)]
for _ in range(8):
    thread = threading.Thread(target=lambda: places.append(allocate(64)))
    thread.start()
    thread.join()
print(max(places) - min(places))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64_000_000  # bytes between two arenas
