"""The commands and programs of the pages, in their order, against one `afterword dev`.

A block that needs more than that says so in a comment before it: `<!-- not run: it needs Docker -->`.
"""

import asyncio
import json
import os
import re
import shutil
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from afterword.embedded import Process
from tests.blocks import COMMANDS, Block, blocks

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    *(DOCS / name for name in ("tutorial.md", "segmentation.md", "agents.md", "reading.md", "summaries.md")),
    *sorted((DOCS / "how-to").glob("*.md")),
]
SHOWN = {
    "tutorial.md": ("5 messages of 1 conversation", "chat-1:1", "leave it with Grace"),
    "try-recall.md": ("3 of 4 questions have the expected answer (75%), 3 in the best hit",),
    "bot.md": (
        "user: I am allergic to peanuts.",
        "user: I am looking for a cello for my daughter.",
        "user (Ben): I booked the train to Lyon for all of us.",
        "assistant: Noted: no peanuts.",
        "user: I sent the blue lamp back.",
    ),
}
"""Texts that a page's commands have to print."""
ELSEWHERE = ("pip install", "make venv", "source ", "afterword dev")
"""Lines that begin like this are skipped, because the test does the same in another way."""
PATIENCE_SECONDS = 150
RETRIED_SECONDS = 120
STRICT_CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'
SLACK = [{"type": "message", "user": "U1", "text": "Who deploys?", "ts": "1714550001.000100"}]
CHATGPT = [
    {
        "id": "c",
        "create_time": 1_700_000_000.5,
        "mapping": {
            "n0": {
                "id": "n0",
                "parent": None,
                "children": [],
                "message": {
                    "id": "m1",
                    "author": {"role": "user"},
                    "create_time": 1_700_000_001,
                    "content": {"content_type": "text", "parts": ["Which lake is deepest?"]},
                    "recipient": "all",
                },
            }
        },
        "current_node": "n0",
    }
]

EXPORTED = {"type": "message", "id": "e-1", "conversation_id": "e", "user_id": "ada", "role": "user", "content": "Hi"}


@asynccontextmanager
async def development(directory: Path) -> AsyncIterator[Process]:
    """Run `afterword dev` until the end of the block, and check that it stops with exit code 0."""
    process = Process(
        "dev", [sys.executable, "-m", "afterword", "dev"], directory / "dev.log", environment={}, directory=directory
    )
    try:
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while "In another terminal" not in process.tail():
            assert process.running, process.tail()
            assert asyncio.get_running_loop().time() < deadline, process.tail()
            await asyncio.sleep(0.1)
        yield process
    finally:
        code = await asyncio.to_thread(process.stop, PATIENCE_SECONDS)
    assert code == 0, process.tail()


async def shell(directory: Path, commands: str, **variables: str) -> str:
    """Run commands in a new shell, and return their output. Each has to succeed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", commands),
        cwd=directory,
        env=environment | {"PATH": path, "NO_PROXY": "127.0.0.1"} | variables,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(b"y\n" * 10), PATIENCE_SECONDS)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, f"{commands}\n{out.decode()}"
    return out.decode()


async def address_of(process: Process) -> str:
    """Return the server's host and port, once `afterword dev` has printed them."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not (found := re.search(r"^page +http://(\S+)/$", process.log.read_text(), re.MULTILINE)):
        assert asyncio.get_running_loop().time() < deadline, process.tail()
        await asyncio.sleep(0.1)
    return found[1]


async def in_a_moment(directory: Path, commands: str, **variables: str) -> str:
    """Retry like a reader whose message is not in the archive yet."""
    deadline = asyncio.get_running_loop().time() + RETRIED_SECONDS
    while True:
        try:
            return await shell(directory, commands, **variables)
        except AssertionError:
            if asyncio.get_running_loop().time() > deadline:
                raise


def files_of_the_pages(directory: Path) -> None:
    """Write the files that the pages' commands read."""
    (directory / "examples").symlink_to(ROOT / "examples")
    (directory / "afterword").mkdir()
    (directory / "afterword" / "samples").symlink_to(ROOT / "afterword" / "samples")
    (directory / "conversations.json").write_text(json.dumps(CHATGPT))
    (directory / "exported.jsonl").write_text(json.dumps(EXPORTED) + "\n")
    (directory / "export" / "general").mkdir(parents=True)
    (directory / "export" / "general" / "2024-05-01.json").write_text(json.dumps(SLACK))


def commands_of(block: Block, address: str) -> str:
    """Return the commands to run for a block."""
    code = re.sub(r"(localhost|127\.0\.0\.1):8080", address, block.code)
    if block.language == "python":
        return f"cat > block.py <<'PROGRAM'\n{code}PROGRAM\npython block.py"
    lines = [line for line in code.splitlines() if not line.startswith(ELSEWHERE)]
    checked = ["afterword config show"] if code.startswith("export AFTERWORD_") else []
    return STRICT_CURL + "\n".join([*lines, *checked]) if lines else ""


async def printed_by(page: Path, directory: Path, address: str, kafka: str) -> str:
    """Run the blocks of a page and return what they print."""
    said = []
    for block in blocks(page):
        if block.file is not None:
            (directory / block.file).write_text(block.code)
        elif block.reason is None and block.language in (*COMMANDS, "python"):
            variables = {"BOOTSTRAP_SERVERS": kafka, "MEMORY_URL": f"http://{address}"}
            said.append(await in_a_moment(directory, commands_of(block, address), **variables))
    return "".join(said)


@pytest.mark.timeout(1800)
async def test_documented_commands_and_programs_work(tmp_path: Path) -> None:
    files_of_the_pages(tmp_path)
    failed = {}
    async with development(tmp_path) as process:
        address = await address_of(process)
        config = tomllib.loads((tmp_path / ".afterword" / "afterword.toml").read_text())
        kafka = config["kafka"]["bootstrap_servers"]
        for page in PAGES:
            try:
                said = await printed_by(page, tmp_path, address, kafka)
                assert [text for text in SHOWN.get(page.name, ()) if text not in said] == []
            except AssertionError as error:
                failed[page.name] = str(error)
        if shutil.which("node"):
            chat = f"printf 'May I eat peanuts?\\n\\n' | MEMORY_URL=http://{address} node bot.mjs"
            assert "user: I am allergic to peanuts." in await in_a_moment(tmp_path, chat)
    assert not failed, "\n\n".join(f"{page}: {problem}" for page, problem in failed.items())
