"""What is shown of settings holds no secret."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.streams.settings import (
    HIDDEN,
    Settings,
    load_settings,
    shown_as_dict,
    shown_settings,
    without_credentials,
)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("mongodb://127.0.0.1:27017", "mongodb://127.0.0.1:27017"),
        ("mongodb://u:canary@h/", "mongodb://h/"),
        ("mongodb+srv://u:canary@cluster.example/db?authSource=canary", "mongodb+srv://cluster.example/db"),
        ("mongodb://u:canary@h1:1,h2:2/db?a=b@canary", "mongodb://h1:1,h2:2/db"),
        ("https://u:canary@[::1]:6333", "https://[::1]:6333"),
        ("mongodb://u:can@canary@h/", HIDDEN),
        ("mongodb://u:can/canary@h/", HIDDEN),
        ("mongodb://u:can?canary@h/", HIDDEN),
        ("mongodb://u:canary", HIDDEN),
        ("canary", HIDDEN),
        ("mongodb://h/\ncanary", HIDDEN),
    ],
)
def test_an_address_is_shown_without_user_password_and_options(address: str, said: str) -> None:
    assert without_credentials(address) == said


@given(st.text(alphabet="canry:/?#@%[]\\ ", max_size=20), st.sampled_from(["h", "h:1/db", "h?x=y"]))
def test_a_password_of_any_form_is_not_shown(noise: str, rest: str) -> None:
    assert "CANARY" not in without_credentials(f"mongodb://u:{noise}CANARY@{rest}")
    assert "CANARY" not in without_credentials(f"mongodb://u:CANARY{noise}@{rest}")


def test_every_setting_is_shown_and_those_that_are_not_the_default_are_marked() -> None:
    found = {setting.variable: setting for setting in shown_settings(load_settings(kafka={"partitions": 3}))}
    assert (found["AFTERWORD_KAFKA__PARTITIONS"].value, found["AFTERWORD_KAFKA__PARTITIONS"].is_default) == (3, False)
    assert found["AFTERWORD_KAFKA__BOOTSTRAP_SERVERS"].is_default
    assert found["AFTERWORD_LLM__API_KEY"].value is None


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
