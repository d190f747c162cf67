"""`afterword mcp` speaks the protocol on standard output and nothing else, and prints what clients need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "any", "version": "1"}},
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
AWAY = {"AFTERWORD_MONGO__URI": "mongodb://127.0.0.1:9/?serverSelectionTimeoutMS=100", "AFTERWORD_LOGS__LEVEL": "INFO"}


def run(directory: Path, *options: str, given: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "afterword", "mcp", *options]
    own = os.environ | AWAY | environment
    return subprocess.run(
        command, input=given, capture_output=True, text=True, env=own, check=False, cwd=directory, timeout=60
    )


def test_mcp_over_stdio_prints_messages_only_and_ends_cleanly(tmp_path: Path) -> None:
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    lines = "no message\n" + "".join(json.dumps(one) + "\n" for one in (INITIALIZE, initialized, LIST))
    done = run(tmp_path, "--user", "u1", given=lines)
    assert done.returncode == 0, done.stderr
    answers = {answer.get("id"): answer for answer in map(json.loads, done.stdout.splitlines())}
    assert answers[1]["result"]["serverInfo"]["name"] == "afterword"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [(), ("--user", "")])
def test_mcp_command_requires_a_user(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert "--user" in done.stderr


def test_printed_configuration_can_be_pasted(tmp_path: Path) -> None:
    file = tmp_path / "afterword.toml"
    file.touch()
    file.chmod(0o600)
    done = run(tmp_path, "--user", "u1", "--tenant", "ü b", "--write", "--json", AFTERWORD_CONFIG="afterword.toml")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mcpServers"]["afterword"] == {
        "command": sys.executable,
        "args": ["-m", "afterword", "mcp", "--user", "u1", "--tenant", "ü b", "--write"],
        "env": {"AFTERWORD_CONFIG": str(file)},
    }
    assert "AFTERWORD_MONGO__URI" in done.stderr
    assert AWAY["AFTERWORD_MONGO__URI"] not in done.stdout + done.stderr
