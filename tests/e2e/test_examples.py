"""The programs in `examples/`, as they are, against a running server, workers and stores."""

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from afterword import Producer
from afterword.embedded import Process
from afterword.embedded.claims import free_ports
from tests.e2e.deployment import Deployment, environment_of
from tests.e2e.test_serve import ROLES, Serving, feed_runs, serving
from tests.openai_server import running_server
from tests.waiting import until

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PATIENCE_SECONDS = 200
UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN")


@pytest_asyncio.fixture
async def server(deployment: Deployment) -> AsyncIterator[Serving]:
    for role in ROLES:
        deployment.start(role)
    async with serving(deployment) as started:
        await feed_runs(started)
        yield started


async def run(*command: str, directory: Path, **variables: str) -> tuple[int | None, str]:
    """Run a program, and return its exit code and output."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=directory,
        env={**os.environ, "NO_PROXY": "127.0.0.1", **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    except TimeoutError:
        process.kill()
        raise
    return process.returncode, out.decode()


def copy_typescript(directory: Path) -> Path:
    """Copy the client and the document that its types are made of, and return the client's directory."""
    program, reference = directory / "examples" / "typescript", directory / "docs" / "reference"
    left_out = shutil.ignore_patterns("node_modules", "build", "openapi.d.ts")
    shutil.copytree(EXAMPLES / "typescript", program, ignore=left_out)
    reference.mkdir(parents=True)
    shutil.copy(ROOT / "docs" / "reference" / "openapi.json", reference)
    return program


async def npm_problem(directory: Path) -> str | None:
    """Say why npm can install nothing here, if it cannot."""
    code, said = await run("npm", "view", "openapi-fetch", "name", directory=directory)
    return "npm reaches no registry" if code != 0 and any(problem in said for problem in UNREACHABLE) else None


async def test_shell_client_recalls_what_it_said(server: Serving) -> None:
    if not shutil.which("curl"):
        pytest.skip("there is no curl")
    code, said = await run(str(EXAMPLES / "curl.sh"), directory=EXAMPLES, MEMORY_URL=server.address)
    assert code == 0, said
    assert '"content":"I am allergic to peanuts, please remember that."' in said
    assert '"tokens":' in said.splitlines()[-1]


async def built_typescript(directory: Path, *, newest: bool) -> Path:
    """Copy the programs, install what they need, as locked or in its newest versions, and compile them."""
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("there is no node and npm")
    program = copy_typescript(directory)
    if problem := await npm_problem(directory):
        pytest.skip(problem)
    names = json.loads((program / "package.json").read_text())["dependencies"]
    install = ("install", *(f"{name}@latest" for name in names)) if newest else ("ci",)
    for command in ((*install, "--no-audit", "--no-fund"), ("run", "build")):
        code, said = await run("npm", *command, directory=program)
        assert code == 0, said
    return program


async def tool_caller(request: web.Request) -> web.StreamResponse:
    """Answer as a model that recalls before it answers, and then repeats what it is given."""
    body = await request.json()
    last = body["messages"][-1]
    call = {"name": body["tools"][0]["function"]["name"], "arguments": json.dumps({"query": "peanuts"})}
    message: dict[str, Any] = {"role": "assistant", "content": f"I was told: {last['content']}"}
    if last["role"] != "tool":
        message = {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": call}]}
    reason = "stop" if last["role"] == "tool" else "tool_calls"
    choice = {"index": 0, "finish_reason": reason, "message": message}
    return web.json_response({"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


@pytest.mark.parametrize("newest", [False, True], ids=["locked", "newest"])
async def test_chat_with_the_ai_sdk_recalls_an_earlier_chat(server: Serving, tmp_path: Path, *, newest: bool) -> None:
    program = await built_typescript(tmp_path, newest=newest)
    async with running_server() as llm:
        llm.usual = tool_caller
        where = {"MEMORY_URL": server.address, "LLM_URL": f"{llm.url}/v1", "LLM_MODEL": "m", "CHAT_USER": "ann"}

        async def says(chat: str, text: str) -> str:
            code, said = await run("npm", "run", "--silent", "chat", "--", text, directory=program, **where, CHAT=chat)
            assert code == 0, said
            return said

        await says("one", "I am allergic to peanuts.")

        async def recalls() -> bool:
            return "user: I am allergic to peanuts." in await says("two", "May I eat peanuts?")

        await until(recalls)


@pytest.mark.parametrize("newest", [False, True], ids=["locked", "newest"])
async def test_typescript_client_typechecks_and_recalls_what_it_said(
    server: Serving, tmp_path: Path, *, newest: bool
) -> None:
    program = await built_typescript(tmp_path, newest=newest)
    code, said = await run("npm", "start", directory=program, MEMORY_URL=server.address)
    assert code == 0, said
    assert "summary: " in said
    assert "recalled: user: I am allergic to peanuts" in said
    assert "context: 2 messages" in said


async def test_example_service_recalls_an_earlier_chat(deployment: Deployment) -> None:
    for role in ROLES:
        deployment.start(role)
    port = free_ports(1)[0]
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "fastapi_app:app", "--port", str(port)]
    log = deployment.directory / "logs" / "fastapi.log"
    service = Process("fastapi", command, log, environment=environment_of(deployment.settings))
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:

            async def says(chat: str, text: str, user: str = "ada") -> httpx.Response:
                return await client.post(f"/chats/{chat}", json={"user_id": user, "text": text})

            async def answers() -> bool:
                try:
                    return (await client.get("/openapi.json")).status_code == 200
                except httpx.TransportError:
                    return False

            await until(answers)
            assert (await says("one", "I am allergic to peanuts.")).json() == {"text": "I know nothing yet."}
            async with Producer.from_settings(deployment.settings) as producer:
                await producer.flush("one")  # as an idle conversation ends

            async def recalls() -> bool:
                return "I am allergic to peanuts" in (await says("two", "May I eat peanuts?")).json()["text"]

            await until(recalls)
            assert (await says("three", "May I eat peanuts?", user="bob")).json() == {"text": "I know nothing yet."}
            assert (await says("one", "May I eat peanuts?", user="bob")).status_code == 404
    finally:
        service.kill()
