"""A wrong setting stops the start with one line that names it; secrets may be in files, and are never shown."""

import json
import os
from datetime import UTC
from pathlib import Path
from typing import Any, get_args
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from afterword.operating.checks import Advice, check_keys
from afterword.streams.errors import ConfigurationError
from afterword.streams.prompt_template import PLACEHOLDERS, check_template, placeholders
from afterword.streams.settings import (
    ADDRESSES,
    DEV_CONFIG,
    FILE_SUFFIX,
    HIDDEN,
    Budget,
    Location,
    Serve,
    Settings,
    config_file,
    is_loopback,
    is_secret,
    keys_in_clear,
    load_settings,
    locations,
    shown_as_dict,
    shown_settings,
    variable,
    without_credentials,
)
from afterword.streams.summarizer.agent import summary_rules
from afterword.streams.summarizer.summary import SummaryRules
from tests.rows import with_rows

SECRETS = [location for location, field in locations(Settings) if is_secret(field)]
NUMBERS = [at for at, field in locations(Settings) if {float, int} & {field.annotation, *get_args(field.annotation)}]
KEY = "AFTERWORD_LLM__API_KEY"


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AFTERWORD_")]:
        monkeypatch.delenv(name)


def problem() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    text = str(caught.value)
    assert "\n" not in text
    return text


@with_rows
def test_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    assert said in problem()


@pytest.mark.parametrize("location", NUMBERS, ids=variable)
@pytest.mark.parametrize("value", ["inf", "1e400", "nan"])
def test_endless_number_is_refused_where_it_is_set(
    monkeypatch: pytest.MonkeyPatch, location: Location, value: str
) -> None:
    """Times become whole milliseconds, and infinity would fail where one is first needed."""
    monkeypatch.setenv(variable(location), value)
    assert problem().startswith(f"{variable(location)}: ")


def test_kubernetes_service_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("AFTERWORD_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    assert load_settings() == Settings()


def test_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "afterword.toml"
    file.write_text("drain_seconds = 5\n[episodes]\noverlap = 1\ntrigger = 7\n")
    monkeypatch.setenv("AFTERWORD_CONFIG", str(file))
    monkeypatch.setenv("AFTERWORD_EPISODES__TRIGGER", "9")
    settings = load_settings()
    assert (settings.drain_seconds, settings.episodes.overlap, settings.episodes.trigger) == (5, 1, 9)


@with_rows
def test_file_with_wrong_content_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / "file").write_bytes(content)
    monkeypatch.setenv(name, str(tmp_path / "file"))
    assert said in problem()


def test_prompt_file_becomes_the_template(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_text("Summarise {conversation_text}")
    monkeypatch.setenv("AFTERWORD_SUMMARIZER__PROMPT_FILE", str(tmp_path / "prompt.txt"))
    assert load_settings().summarizer.template() == "Summarise {conversation_text}"


def test_nothing_is_limited_by_default() -> None:
    assert not Budget().limited
    assert Budget(tokens_per_hour=1).limited
    assert Budget(tenant_tokens_per_hour=1).limited


def key() -> str:
    secret = load_settings().llm.api_key
    assert secret is not None
    return secret.get_secret_value()


def test_everything_named_password_key_or_secret_is_secret() -> None:
    names = {".".join(map(str, location)) for location, _ in locations(Settings)}
    suspicious = {name for name in names if name.endswith(("password", "api_key", "secret", "uri", "token", ".key"))}
    assert suspicious == {".".join(map(str, location)) for location in SECRETS}


def test_no_setting_collides_with_a_secrets_file() -> None:
    every = [variable(location) for location, _ in locations(Settings)]
    assert {variable(location) + FILE_SUFFIX for location in SECRETS} & set(every) == set()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_secret_file_loses_its_last_newline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str) -> None:
    file = tmp_path / "key"
    file.write_bytes(b" k\ney " + ending.encode())
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(file))
    assert key() == " k\ney "


@pytest.mark.parametrize("location", SECRETS, ids=variable)
def test_secret_set_directly_and_by_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, location: tuple[str, ...]
) -> None:
    name = variable(location)
    monkeypatch.setenv(name, "mongodb://canary")
    monkeypatch.setenv(name + FILE_SUFFIX, str(tmp_path / "absent"))
    assert problem() == f"{name}{FILE_SUFFIX}: {name} is set too; only one of them can count"
    monkeypatch.delenv(name)
    assert problem() == f"{name}{FILE_SUFFIX}: {tmp_path / 'absent'}: No such file or directory"


def test_file_for_a_plain_setting_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_KAFKA__USERNAME_FILE", "name")
    assert problem() == "AFTERWORD_KAFKA__USERNAME_FILE: no such setting"


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("from the file")
    monkeypatch.setenv(KEY, "")
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(file))
    assert key() == "from the file"
    monkeypatch.setenv(KEY, "direct")
    monkeypatch.setenv(KEY + FILE_SUFFIX, "")
    assert key() == "direct"


def test_secret_file_wins_over_toml_and_arguments_over_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("from the file")
    (tmp_path / "a.toml").write_text('[llm]\napi_key = "toml"\ntemperature = 1.0\n')
    monkeypatch.setenv("AFTERWORD_CONFIG", str(tmp_path / "a.toml"))
    monkeypatch.setenv(KEY + FILE_SUFFIX, str(tmp_path / "key"))
    assert key() == "from the file"
    assert load_settings().llm.temperature == 1.0
    assert load_settings(llm={"api_key": "argument"}).llm.api_key == SecretStr("argument")


@with_rows
def test_address_is_shown_without_user_password_and_options(address: str, said: str) -> None:
    assert without_credentials(address) == said


@given(st.text(alphabet="canry:/?#@%[]\\ ", max_size=20), st.sampled_from(["h", "h:1/db", "h?x=y"]))
def test_password_of_any_form_is_not_shown(noise: str, rest: str) -> None:
    assert "CANARY" not in without_credentials(f"mongodb://u:{noise}CANARY@{rest}")
    assert "CANARY" not in without_credentials(f"mongodb://u:CANARY{noise}@{rest}")


async def test_key_sent_unencrypted_to_another_machine_causes_warning() -> None:
    found = load_settings(
        qdrant={"url": "http://qdrant.example:6333", "api_key": "canary"},
        llm={"base_url": "http://127.0.0.1:8000/v1", "api_key": "canary"},
        embedder={"base_url": "http://user:canary@embedder.example/v1/canary123", "api_key": "canary"},
    )
    assert list(keys_in_clear(found)) == [
        ("AFTERWORD_QDRANT__API_KEY", "http://qdrant.example:6333"),
        ("AFTERWORD_EMBEDDER__API_KEY", f"http://embedder.example/v1/{HIDDEN}"),
    ]
    warning = await check_keys(found)
    assert isinstance(warning, Advice)
    assert "canary" not in warning


@pytest.mark.parametrize("url", ["https://qdrant.example", "http://localhost:6333", "http://[::1]:6333", None])
async def test_local_or_encrypted_key_causes_no_warning(url: str | None) -> None:
    found = load_settings(qdrant={"url": url, "api_key": "key"})
    assert list(keys_in_clear(found)) == []
    assert not isinstance(await check_keys(found), Advice)


def test_every_setting_is_shown_and_changes_are_marked() -> None:
    shown = {variable: rest for variable, *rest in shown_settings(load_settings(kafka={"partitions": 3}))}
    assert shown["AFTERWORD_KAFKA__PARTITIONS"] == [3, True]
    assert shown["AFTERWORD_KAFKA__REPLICATION_FACTOR"] == [1, False]
    assert shown["AFTERWORD_LLM__API_KEY"] == [None, False]


def test_origins_are_shown_without_passwords() -> None:
    settings = Settings(serve=Serve(auth="keys", cors_origins="https://a.example, https://u:CANARY@b.example,*"))
    assert shown_as_dict(settings)["serve"]["cors_origins"] == "https://a.example, https://b.example, *"


def test_secrets_are_hidden_and_addresses_trimmed() -> None:
    settings = load_settings(
        llm={"api_key": "canary", "base_url": "http://u:canary@h/v1?key=canary"},
        mongo={"uri": "mongodb://u:canary@h"},
        kafka={"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "username": "u", "password": "canary"},
    )
    text = json.dumps(shown_as_dict(settings))
    assert "canary" not in text
    assert shown_as_dict(settings)["llm"]["api_key"] == HIDDEN
    assert shown_as_dict(settings)["llm"]["base_url"] == "http://h/v1"
    assert "canary" not in repr(settings.kafka) + repr(settings.mongo) + str(settings.llm.api_key)
    assert set(shown_as_dict(settings)) == set(Settings.model_fields)


def test_local_addresses_are_recognized() -> None:
    hosts = ["127.0.0.1", "127.9.9.9", "::1", "localhost", "10.0.0.7", "", None, "0.0.0.0", "localhost.example"]
    assert [host for host in hosts if is_loopback(host)] == hosts[:4]


@pytest.mark.parametrize("origins", ["*", "https://a.example, *", "null"])
def test_auth_none_rejects_wildcard_origins(origins: str) -> None:
    with pytest.raises(ValidationError, match="must name pages"):
        Serve(cors_origins=origins)
    assert Serve(auth="keys", cors_origins=origins).origins
    assert Serve(cors_origins="https://a.example").origins == ["https://a.example"]


@pytest.fixture
def deep_in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory two levels below one with the file of `afterword dev`; nothing names a file or a server."""
    for name in ("AFTERWORD_CONFIG", *ADDRESSES):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / DEV_CONFIG
    file.parent.mkdir()
    file.write_text('[kafka]\nbootstrap_servers = "127.0.0.1:4711"\n')
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def test_dev_settings_are_found_upwards(deep_in_a_project: Path) -> None:
    assert config_file() == str(Path("..") / ".." / DEV_CONFIG)
    assert load_settings().kafka.bootstrap_servers == "127.0.0.1:4711"
    (deep_in_a_project / DEV_CONFIG).unlink()
    assert config_file() is None


@pytest.mark.parametrize("named", [{"AFTERWORD_CONFIG": ""}, {ADDRESSES[0]: "kafka:9092"}])
def test_variables_disable_the_dev_settings(
    deep_in_a_project: Path, named: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    assert deep_in_a_project.exists()
    assert config_file() is None


def test_health_is_local_unless_configured_otherwise() -> None:
    assert Settings().health.host == "127.0.0.1"


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def test_default_summary_and_row_have_documented_sizes() -> None:
    assert summary_rules(settings()) == SummaryRules(800, max_summary_length=1000)


@with_rows
def test_trigger_preset_sets_the_summary_length_unless_configured(given: dict[str, Any], characters: int) -> None:
    assert summary_rules(settings(**given)).max_summary_length == characters


def test_days_count_in_utc_unless_a_zone_is_set() -> None:
    assert summary_rules(settings()).zone is UTC
    assert summary_rules(settings(summarizer={"time_zone": "Europe/Berlin"})).zone == ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../../etc/passwd", "/etc/localtime", "Europe", "x" * 300])
def test_invalid_time_zone_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a time zone such as Europe/Berlin"):
        settings(summarizer={"time_zone": name})


@with_rows
def test_template_needs_the_conversation_and_known_placeholders(text: str) -> None:
    check_template(text)


@with_rows
def test_template_problem_is_named_in_one_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=r"placeholder|brace") as caught:
        check_template(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="{}ab!:.[]0 ") | st.text())
def test_accepted_template_can_be_filled(text: str) -> None:
    try:
        check_template(text)
    except ValueError:
        return
    text.format(**dict.fromkeys(PLACEHOLDERS, "{x}"))


@given(st.lists(st.sampled_from([f"{{{name}}}" for name in PLACEHOLDERS] + ["{{", "}}", " a "])).map("".join))
def test_every_placeholder_is_found(text: str) -> None:
    assert [f"{{{name}}}" for name in placeholders(text)] == [
        f"{{{name}}}" for name in placeholders(text.replace("{{", "").replace("}}", ""))
    ]
