"""docs/tutorial.md, word by word: what stands in its blocks is run, in this order, in one directory."""

import asyncio
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from afterword.embedded import Process
from tests.e2e.test_examples import copy_typescript, npm_problem

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial.md"
INSTALL, START = "make venv", "afterword dev"
ADDRESS = "http://127.0.0.1:8080"
PATIENCE_SECONDS = 150


def blocks() -> list[str]:
    return re.findall(r"^```\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@asynccontextmanager
async def development(directory: Path) -> AsyncIterator[Process]:
    """`afterword dev`, up: it tells of itself in the file that other terminals are pointed at."""
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
        code = await asyncio.to_thread(process.stop)
    assert code == 0, process.tail()


async def shell(directory: Path, commands: str) -> str:
    """Run commands in a terminal of their own, each of which has to succeed, and return their output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    process = await asyncio.create_subprocess_exec(
        *("bash", "-euo", "pipefail", "-c", commands),
        cwd=directory,
        env=environment | {"PATH": path},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, f"{commands}\n{out.decode()}"
    return out.decode()


async def address_of(process: Process) -> str:
    """The server's address, once `afterword dev` has said it."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while not (found := re.search(r"^page +(http://\S+)/$", process.log.read_text(), re.MULTILINE)):
        assert asyncio.get_running_loop().time() < deadline, process.tail()
        await asyncio.sleep(0.1)
    return found[1]


async def in_a_moment(directory: Path, commands: str) -> str:
    """Retry like a reader whose archiver was not ready yet."""
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while True:
        try:
            return await shell(directory, commands)
        except AssertionError:
            if asyncio.get_running_loop().time() > deadline:
                raise


@pytest.mark.timeout(900)
async def test_every_command_of_the_tutorial_works(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    install, start, point, produce, look, flush, read, audit, over_http, typescript = blocks()
    assert install.startswith(INSTALL)
    assert start.strip() == START
    async with development(tmp_path) as process:
        assert "FAILED" not in await shell(tmp_path, point)
        assert "5 messages of 1 conversation" in await shell(tmp_path, produce)
        assert "leave it with Grace" in await in_a_moment(tmp_path, look)
        assert "chat-1:1" in await shell(tmp_path, flush)
        assert "4711" in await shell(tmp_path, read)
        await shell(tmp_path, audit)
        told = process.log.read_text()
        assert re.search(r"^episode chat-1:1: 5 messages", told, re.M)
        assert re.search(r"^summary chat-1:1: ", told, re.M)
        address = await address_of(process)
        assert "leave it with Grace" in await shell(tmp_path, over_http.replace(ADDRESS, address))
        copy_typescript(tmp_path)
        if shutil.which("npm") and not await npm_problem(tmp_path):
            assert "recalled: user: I am allergic" in await shell(tmp_path, typescript.replace(ADDRESS, address))
