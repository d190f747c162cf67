"""`afterword prompt try --golden` with an LLM server and no store."""

import asyncio
import os
import sys

import orjson

from afterword.streams.telemetry.metrics import REFUSALS
from tests import openai_server as llm
from tests.openai_server import LlmServer, llm_server

__all__ = ["llm_server"]

SECONDS = 240


async def test_a_model_that_says_the_same_of_every_episode_has_no_good_summary(llm_server: LlmServer) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AFTERWORD_")},
        "AFTERWORD_LLM__PROVIDER": "openai",
        "AFTERWORD_LLM__BASE_URL": f"{llm_server.url}/v1",
        "AFTERWORD_LLM__MODEL": llm.MODEL,
    }
    command = [sys.executable, "-m", "afterword", "prompt", "try", "--golden", "--model", "another", "--json"]
    process = await asyncio.create_subprocess_exec(
        *command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(SECONDS):
        told, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    found = orjson.loads(told)
    assert (found["worse"], found["extractive"]["model"]) == (False, "extractive")
    assert [found[side]["model"] for side in ("today", "candidate")] == [llm.MODEL, "another"]
    for side in ("today", "candidate"):
        assert (found[side]["recall"], sum(found[side]["failures"].values())) == (0.0, 60)
        assert set(found[side]["failures"]) <= REFUSALS
        assert found[side]["tokens"] > 0
    assert found["extractive"]["recall"] > 0.6
    assert {request.body["model"] for request in llm_server.requests} == {llm.MODEL, "another"}
