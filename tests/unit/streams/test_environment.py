"""Secrets may be in files."""

from pathlib import Path

import pytest
from pydantic import SecretStr

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import FILE_SUFFIX, Settings, is_secret, load_settings, locations, variable

SECRETS = [location for location, field in locations(Settings) if is_secret(field)]
KEY = "AFTERWORD_LLM__API_KEY"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("AFTERWORD_")]:
        monkeypatch.delenv(name)


def problem() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    return str(caught.value)


def key() -> str:
    secret = load_settings().llm.api_key
    assert secret is not None
    return secret.get_secret_value()


def test_whatever_is_called_a_password_a_key_or_a_secret_is_one() -> None:
    names = {".".join(map(str, location)) for location, _ in locations(Settings)}
    suspicious = {name for name in names if name.endswith(("password", "api_key", "secret", "uri", "token"))}
    assert suspicious == {".".join(map(str, location)) for location in SECRETS}


def test_no_setting_has_the_name_of_a_secret_s_file() -> None:
    every = [variable(location) for location, _ in locations(Settings)]
    assert {variable(location) + FILE_SUFFIX for location in SECRETS} & set(every) == set()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_a_secret_is_read_from_the_file_without_its_last_newline(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" k\ney " + ending.encode())
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(file))
    assert key() == " k\ney "


@pytest.mark.parametrize("location", SECRETS, ids=variable)
def test_every_secret_can_be_in_a_file_and_one_that_is_set_twice_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: tuple[str, ...]
) -> None:
    name = variable(location)
    monkeypatch.setenv(name, "mongodb://canary")
    monkeypatch.setenv(name + FILE_SUFFIX, str(tmp_path / "absent"))
    assert problem() == f"{name}{FILE_SUFFIX}: {name} is set too; only one of them can count"
    monkeypatch.delenv(name)
    assert problem() == f"{name}{FILE_SUFFIX}: {tmp_path / 'absent'}: No such file or directory"


@pytest.mark.parametrize(
    ("content", "said"), [(b"", "the file is empty"), (b"\n", "the file is empty"), (b"\xff", "not UTF-8")]
)
def test_a_file_that_holds_no_secret_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes, said: str
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(file))
    assert said in problem()


def test_a_file_of_what_is_no_secret_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_KAFKA__USERNAME_FILE", "name")
    assert problem() == "AFTERWORD_KAFKA__USERNAME_FILE: no such setting"


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from the file")
    monkeypatch.setenv(KEY, "")
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(file))
    assert key() == "from the file"
    monkeypatch.setenv(KEY, "direct")
    monkeypatch.setenv(KEY + FILE_SUFFIX, "")
    assert key() == "direct"


def test_the_file_wins_over_toml_and_arguments_win_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text("from the file")
    (tmp_path / "a.toml").write_text('[llm]\napi_key = "toml"\ntemperature = 1.0\n')
    monkeypatch.setenv("AFTERWORD_CONFIG", str(tmp_path / "a.toml"))
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(tmp_path / "key"))
    assert key() == "from the file"
    assert load_settings().llm.temperature == 1.0
    assert load_settings(llm={"api_key": "argument"}).llm.api_key == SecretStr("argument")
