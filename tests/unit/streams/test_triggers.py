"""Notations of a trigger: in the file, in the environment, by name; and the errors of invalid ones."""

import json
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Episodes, load_settings
from afterword.streams.triggers import TRIGGER_PRESETS, TriggerInvalid, parse_trigger, read_trigger
from tests.rows import with_rows

VARIABLE = "AFTERWORD_EPISODES__TRIGGER"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AFTERWORD_CONFIG", raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)


def episodes(monkeypatch: pytest.MonkeyPatch, variable: str | None, file: Path | None = None) -> Episodes:
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)
    if file is not None:
        monkeypatch.setenv("AFTERWORD_CONFIG", str(file))
    return load_settings().episodes


def test_default_closes_at_ten_messages_or_4000_tokens() -> None:
    assert Episodes().conditions() == ("any", (("messages", 10), ("tokens", 4000)))


def test_number_sets_the_messages_of_the_default_trigger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_EPISODES__TRIGGER_TOKENS", "50")
    found = episodes(monkeypatch, "7")
    assert found.trigger == 7
    assert found.conditions() == ("any", (("messages", 7), ("tokens", 50)))


@with_rows
def test_trigger_of_file_is_replaced_by_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str | None, file: str | None, conditions: object
) -> None:
    (tmp_path / "afterword.toml").write_text(file or "")
    found = episodes(monkeypatch, variable, tmp_path / "afterword.toml")
    assert json.loads(json.dumps(found.conditions())) == conditions
    assert found.preset == TRIGGER_PRESETS["default"]


@with_rows
def test_preset_is_chosen_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, conditions: object, keep_recent: int | None, max_summary_length: int
) -> None:
    found = episodes(monkeypatch, name)
    assert json.loads(json.dumps(found.conditions())) == conditions
    assert (found.preset.keep_recent, found.preset.max_summary_length) == (keep_recent, max_summary_length)


@with_rows
def test_trigger_problem_names_setting_and_place(monkeypatch: pytest.MonkeyPatch, written: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        episodes(monkeypatch, written)
    assert str(caught.value).startswith(f"{VARIABLE}: {said}")
    assert "\n" not in str(caught.value)


def test_trigger_problem_is_told_without_its_value() -> None:
    with pytest.raises(TriggerInvalid) as caught:
        parse_trigger([{"any": [{"canary": 1}]}], 1)
    assert str(caught.value) == "[0].any[0]: unknown condition"


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["any", "all", "messages", "seconds", "x"]), inner, max_size=2),
    ),
    max_leaves=10,
)


@given(ANY_JSON)
def test_any_json_is_a_trigger_or_refused(written: object) -> None:
    try:
        trigger = read_trigger(written)
        conditions = parse_trigger(trigger, 1)
    except TriggerInvalid:
        return
    assert conditions[0]
    assert parse_trigger(orjson.loads(orjson.dumps(trigger)), 1) == conditions
