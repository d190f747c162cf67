import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from afterword.streams.summarizer.embedders import ModelNotFetched, fetch_model
from tests.endpoints import serving

NAME, COMMIT = "someone/small-encoder", "0123456789" * 4
MODEL = {"onnx/model.onnx": b"weights", "config.json": b"{}", "tokenizer.json": b"{}", "1_Pooling/config.json": b"{}"}


@asynccontextmanager
async def hub(files: dict[str, bytes]) -> AsyncIterator[str]:
    """Stand in for the hub, with one repository of one commit."""

    async def answer(request: web.Request) -> web.Response:
        path = request.match_info["path"]
        if path.startswith(f"api/models/{NAME}"):
            siblings = [{"rfilename": name} for name in files]
            return web.json_response({"id": NAME, "modelId": NAME, "sha": COMMIT, "siblings": siblings})
        content = files.get(path.removeprefix(f"{NAME}/resolve/{COMMIT}/"))
        if content is None:
            return web.json_response({"error": "not found"}, status=404, headers={"x-error-code": "RepoNotFound"})
        headers = {"x-repo-commit": COMMIT, "etag": f'"{hashlib.sha256(content).hexdigest()}"'}
        return web.Response(body=content, headers=headers)

    async with serving(answer, "*", "/{path:.*}") as url:
        yield url


async def fetched(url: str, directory: Path, name: str = NAME) -> str:
    return await asyncio.to_thread(fetch_model, name, directory, hub=url)


def contents(directory: Path) -> dict[str, bytes]:
    """Return the files of a folder but those in which the hub's client keeps its state."""
    files = (file for file in directory.rglob("*") if file.is_file())
    named = {str(file.relative_to(directory)): file.read_bytes() for file in files}
    return {name: content for name, content in named.items() if not name.startswith(".cache")}


async def test_model_is_fetched_without_the_repositorys_code(tmp_path: Path) -> None:
    async with hub({**MODEL, "modeling.py": b"raise SystemExit", "pytorch_model.bin": b"large"}) as url:
        assert await fetched(url, tmp_path) == COMMIT
    assert contents(tmp_path) == MODEL


@pytest.mark.parametrize(
    ("files", "name", "problem"),
    [
        ({"config.json": b"{}"}, NAME, "no onnx/model.onnx"),
        (MODEL, "someone/else", "404"),
        (MODEL, "not a name", "not a name"),
    ],
)
async def test_missing_model_is_named(tmp_path: Path, files: dict[str, bytes], name: str, problem: str) -> None:
    async with hub(files) as url:
        with pytest.raises(ModelNotFetched, match=problem):
            await fetched(url, tmp_path, name)
