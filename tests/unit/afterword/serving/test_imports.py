import subprocess
import sys


def test_server_imports_libraries_only_on_demand() -> None:
    loaded = "import sys, afterword.serving.server; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], check=True, capture_output=True, text=True)
    assert not {"faust", "mcp", "jwt", "httpx", "numpy", "dateparser", "tokenizers"} & set(found.stdout.split())
