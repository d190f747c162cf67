"""The command that adds up the LLM's usage."""

import asyncio
import json
from pathlib import Path

import pytest

from afterword.cli import main
from afterword.schemas import Usage
from afterword.streams.settings import Llm, load_settings
from afterword.streams.stores.opening import open_stores
from tests.samples import a_stored_episode

USED = Usage(prompt_tokens=1_000_000, cached_tokens=400_000, completion_tokens=50_000, seconds=2.5)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a store with one episode of each of two users."""
    path = tmp_path / "afterword.sqlite"
    monkeypatch.setenv("AFTERWORD_SQLITE__PATH", str(path))

    async def fill() -> None:
        async with open_stores(load_settings()) as stores:
            await stores.prepare_database()
            for ordinal, user in enumerate(("ann", "bob"), 1):
                await stores.episodes.put(a_stored_episode(ordinal, user_id=user, usage=USED), None)

    asyncio.run(fill())
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["usage", *arguments])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.usefixtures("file")
def test_usage_prints_a_row_per_group(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    without = said(capsys, "--by", "user").splitlines()
    assert without[0].split("\t") == ["user", "episodes", "prompt tokens", "cached", "answer tokens", "seconds"]
    assert without[1].split("\t")[:3] == ["ann", "1", "1,000,000"]
    for name, price in (("PROMPT", "2"), ("CACHED", "0.5"), ("ANSWER", "10")):
        monkeypatch.setenv(f"AFTERWORD_LLM__{name}_PRICE", price)
    assert said(capsys, "--by", "user").splitlines()[1].endswith("\t1.90")
    [row] = json.loads(said(capsys, "--by", "tenant", "--json"))
    assert (row["tenant"], row["episodes"], row["cached_tokens"], row["cost"]) == ("t1", 2, 800_000, pytest.approx(3.8))


@pytest.mark.parametrize(
    ("cost", "shown"),
    [(0, "0.00"), (0.002672, "0.0027"), (0.05, "0.050"), (0.5, "0.50"), (1_234.5, "1,234.50"), (2e-7, "0.00000020")],
)
def test_cost_is_shown_with_two_significant_digits(cost: float, shown: str) -> None:
    assert Llm().cost_shown(cost) == shown
    assert Llm(currency="EUR").cost_shown(cost) == f"{shown} EUR"


def test_cached_tokens_cost_as_others_unless_priced() -> None:
    llm = Llm(prompt_price=2, answer_price=10)
    assert llm.cost(1_000_000, 400_000, 0) == pytest.approx(2)
    assert Llm(prompt_price=2).cost(1, 0, 1) is None
