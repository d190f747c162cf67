"""What a summarizer imports: each of the libraries that it leaves out takes megabytes of every worker."""

import subprocess
import sys

OF_OTHERS = {"rocksdict", "phonenumbers", "stdnum", "afterword.streams.segmenter.agent"}
"""What the state of a segmenter and redaction need."""


def test_summarizer_imports_nothing_of_other_workers() -> None:
    loaded = "import sys, afterword.streams.summarizer.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True)
    assert OF_OTHERS.isdisjoint(done.stdout.split())
