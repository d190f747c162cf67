import subprocess
import sys


def test_a_server_loads_no_library_before_a_request_needs_it() -> None:
    loaded = "import sys, afterword.serving.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert not {"mcp", "jwt", "httpx", "numpy", "dateparser", "tokenizers"} & set(found.stdout.split())
