"""Clients that a generator makes of the OpenAPI document with its default settings compile, and know the bodies."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.test_examples import UNREACHABLE, copy_typescript, npm_problem, run

pytestmark = pytest.mark.nightly

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
TYPESCRIPT = """\
import { connect } from "./memory.js";

const memory = connect("http://127.0.0.1:8080");
const path = { conversation_id: "c1", message_id: "m1" };
const message = "/v1/conversations/{conversation_id}/messages/{message_id}";
await memory.PATCH(message, { params: { path }, body: { content: "New." } });
// @ts-expect-error: a text is no number
await memory.PATCH(message, { params: { path }, body: { content: 5 } });
await memory.POST("/v1/recall", { body: { query: "peanuts", user_id: "ada" } });
// @ts-expect-error: the user is missing
await memory.POST("/v1/recall", { body: { query: "peanuts" } });
// @ts-expect-error: the user is missing
await memory.GET("/v1/conversations", { params: { query: {} } });
"""
PYTHON = """\
from afterword_client import AuthenticatedClient
from afterword_client.api.changes import edit_message
from afterword_client.api.memory import get_context, recall
from afterword_client.models import ChangeBody, RecallBody

client = AuthenticatedClient(base_url="http://127.0.0.1:8080", token="key")


def use() -> None:
    edit_message.sync("c1", "m1", client=client, body=ChangeBody(content="New."))
    edit_message.sync("c1", "m1", client=client, body="New.")  # type: ignore[arg-type]
    recall.sync(client=client, body=RecallBody(query="peanuts", user_id="ada"))
    RecallBody(query="peanuts")  # type: ignore[call-arg]
    get_context.sync("c1", client=client, max_tokens=500)
"""


async def test_generated_typescript_client_compiles(tmp_path: Path) -> None:
    if not shutil.which("node") or not shutil.which("npm"):
        pytest.skip("there is no node and npm")
    if problem := await npm_problem(tmp_path):
        pytest.skip(problem)
    program = copy_typescript(tmp_path)
    (program / "src" / "routes.ts").write_text(TYPESCRIPT)
    for command in (("npm", "ci", "--no-audit", "--no-fund"), ("npm", "run", "build")):
        code, said = await run(*command, directory=program)
        assert code == 0, said


async def test_generated_python_client_compiles(tmp_path: Path) -> None:
    assert (await run(sys.executable, "-m", "venv", "own", directory=tmp_path))[0] == 0
    own = tmp_path / "own" / "bin"
    code, said = await run(
        *(str(own / "pip"), "install", "--quiet", "--retries", "1", "openapi-python-client==0.29.1", "mypy", "ruff"),
        directory=tmp_path,
    )
    if code != 0 and any(problem in said for problem in (*UNREACHABLE, "No matching distribution")):
        pytest.skip("pip reaches no index")
    assert code == 0, said
    path = f"{own}{os.pathsep}{os.environ['PATH']}"
    code, said = await run(
        *("openapi-python-client", "generate", "--path", str(DOCUMENT), "--output-path", "client"),
        directory=tmp_path,
        PATH=path,
    )
    assert (code, "arning" in said) == (0, False), said
    client = tmp_path / "client"
    (client / "use.py").write_text(PYTHON)
    code, said = await run(str(own / "mypy"), "--warn-unused-ignores", "afterword_client", "use.py", directory=client)
    assert code == 0, said
