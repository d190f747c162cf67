import re
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, SecretStr

from afterword.streams.settings import PREFIX, READ_ELSEWHERE, Settings
from tools.reference.settings import reference

TESTS = Path(__file__).parents[2]
PAGE = Path(__file__).parents[3] / "docs" / "settings.md"


class Server(BaseModel):
    key: SecretStr | None = Field(None, description="of the server")
    seconds: float = Field(2.0, gt=0, le=9.5)
    mode: Literal["a", "b"] = Field("a", description="a | b")


class Example(BaseModel):
    name: str | None = Field(None, min_length=1)
    server: Server = Server(key=SecretStr("hunter2"))


def row(variable: str) -> str:
    return next(line for line in reference(Example).splitlines() if f"`{variable}`" in line)


def test_the_page_is_what_the_settings_say() -> None:
    assert PAGE.read_text() == reference(Settings), "docs/settings.md is stale: make docs"


def test_every_setting_says_what_it_is_for() -> None:
    unexplained = [
        line for line in reference(Settings).splitlines() if line.startswith("| `") and line.endswith("|  |")
    ]
    assert unexplained == []


def test_variables_that_are_read_elsewhere_are_on_the_page_too() -> None:
    assert all(f"`{PREFIX}{name}`" in reference(Settings) for name in READ_ELSEWHERE)


def test_every_variable_that_tests_read_is_known_to_be_read_elsewhere() -> None:
    code = "".join(path.read_text() for path in TESTS.rglob("*.py"))
    read = set(re.findall(rf"{PREFIX}(TEST_[A-Z_]+)", code))
    assert read == {name for name in READ_ELSEWHERE if name.startswith("TEST_")}


def test_a_setting_is_named_by_its_variable_with_type_bounds_and_default() -> None:
    assert row("AFTERWORD_SERVER__SECONDS") == ("| `AFTERWORD_SERVER__SECONDS` | number, > 0, ≤ 9.5 | `2` |  |")
    assert row("AFTERWORD_NAME") == "| `AFTERWORD_NAME` | text, not empty | – |  |"


def test_a_secret_is_called_one_and_what_somebody_set_is_not_shown() -> None:
    assert row("AFTERWORD_SERVER__KEY") == "| `AFTERWORD_SERVER__KEY` | secret | – | of the server |"
    assert "hunter2" not in reference(Example)


def test_a_bar_in_a_description_does_not_break_the_table() -> None:
    assert row("AFTERWORD_SERVER__MODE") == r"| `AFTERWORD_SERVER__MODE` | `a`, `b` | `a` | a \| b |"
