"""Rules between settings, as data for the chart, so that it refuses what streams/settings.py refuses before any pod
starts.

A rule names a section and conditions: `when` (values) and `without` (names that are not set). If all conditions hold,
the rule requires or refuses other names. `most` compares two numbers. tests/deploy/test_settings_of_the_chart.py
compares chart and code.
"""

from collections.abc import Iterator
from typing import Any, get_args

from afterword.streams.settings import (
    JWT,
    PASSWORD,
    SASL,
    TLS,
    TOKEN,
    TOKEN_OPTIONS,
    SaslMechanism,
    SecurityProtocol,
    Settings,
)

Rule = dict[str, Any]
WITH_TLS = ["SSL", "SASL_SSL"]
WITH_SASL = ["SASL_SSL", "SASL_PLAINTEXT"]
WITH_TOKEN = ["OAUTHBEARER"]
WITH_AWS = ["AWS_MSK_IAM"]
WITH_MODEL = ["openai", "ollama"]


def rules() -> list[Rule]:
    models = [_rule(name, when={"provider": WITH_MODEL}, needs=["model"]) for name in ("llm", "embedder")]
    serve = _rule("serve", when={"auth": ["jwt"]}, needs=list(JWT))
    return [*_kafka(), *models, serve, *_bounds()]


def _kafka() -> Iterator[Rule]:
    protocols, mechanisms = get_args(SecurityProtocol), get_args(SaslMechanism)
    with_sasl = {"security_protocol": WITH_SASL}
    passwords = {**with_sasl, "sasl_mechanism": [name for name in mechanisms if name not in (*WITH_TOKEN, *WITH_AWS)]}
    tokens = {**with_sasl, "sasl_mechanism": WITH_TOKEN}
    aws, of_tokens = {**with_sasl, "sasl_mechanism": WITH_AWS}, [*TOKEN, *TOKEN_OPTIONS, "oauth_token_file"]
    yield _rule("kafka", when={"security_protocol": _others(protocols, WITH_TLS)}, refuses=list(TLS))
    yield _rule("kafka", when={"security_protocol": _others(protocols, WITH_SASL)}, refuses=list(SASL))
    yield _rule("kafka", when=with_sasl, needs=["sasl_mechanism"])
    yield _rule("kafka", when=tokens, refuses=[*PASSWORD, "aws_region"])
    yield _rule("kafka", when=tokens, without=["oauth_token_file"], needs=list(TOKEN))
    yield _rule("kafka", when=aws, needs=["aws_region"], refuses=[*PASSWORD, *of_tokens])
    yield _rule("kafka", when=passwords, needs=list(PASSWORD), refuses=[*of_tokens, "aws_region"])
    yield _rule("kafka", without=["ssl_cert_file"], refuses=["ssl_key_file", "ssl_key_password"])


def _others(choices: tuple[str, ...], chosen: list[str]) -> list[str]:
    return [choice for choice in choices if choice not in chosen]


def _bounds() -> Iterator[Rule]:
    yield _most("episodes", "overlap", 1, "max_episode_size", 1, "it is part of an episode")
    yield _most("episodes", "min_episode_size", 1, "max_episode_size", 1, "no episode would be long enough")
    yield _most("llm", "max_output_tokens", 2, "context_tokens", 1, "at most half of the context is for the answer")
    yield _most("retry", "first_delay_seconds", 1, "longest_delay_seconds", 1, "delays grow")


def _most(section: str, smaller: str, smaller_times: int, larger: str, larger_times: int, meaning: str) -> Rule:
    """Require smaller × smaller_times ≤ larger × larger_times."""
    bound = {"smaller": smaller, "smaller_times": smaller_times, "larger": larger, "larger_times": larger_times}
    return _rule(section, most={**bound, "meaning": meaning})


def _rule(section: str, **parts: Any) -> Rule:
    return {"section": section, **parts}


def defaults() -> dict[str, dict[str, Any]]:
    """Return the code's defaults of the settings whose values the rules compare, by section."""
    found: dict[str, dict[str, Any]] = {}
    settings = Settings.model_construct()
    for rule in rules():
        bound = rule.get("most", {})
        names = {*rule.get("when", {}), *(bound[name] for name in ("smaller", "larger") if bound)}
        for name in sorted(names):
            value = getattr(getattr(settings, rule["section"]), name)
            if value is not None:
                found.setdefault(rule["section"], {})[name] = value
    return found
