"""The file of sources, and which topics they read."""

from pathlib import Path

import pytest

from afterword.streams.errors import ConfigurationError
from afterword.streams.ingest.sources import (
    load_sources,
    match_topics,
    parse_sources,
    require_sources,
    source_topics,
)
from afterword.streams.settings import Settings, load_settings
from tests.unit.streams.ingest.records import FIELDS

MAP = f"[sources.map]\n{FIELDS}\n"
GOOD = f'[[sources]]\ntopics = ["chat"]\n{MAP}'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[sources]]", "afterword.toml, source 1: topics: Field required"),
        (GOOD + '[[sources]]\ntopics = ["b"]\nformat = "xml"\n' + MAP, "source 2: format: Input should be 'json'"),
        (GOOD.replace('"value.id"', '"value["'), "source 1: map.id: not JMESPath"),
        (GOOD.replace('"value.id"', "5"), "source 1: map.id: must be a JMESPath expression in quotes"),
        (GOOD + 'sent_at = { path = "value.at", unit = "min" }', "source 1: map.sent_at.unit: Input should be"),
        (GOOD.replace('"value.role"', '{ path = "value.role", values = { bot = "robot" } }'), "map.role.values.bot: "),
        (GOOD + 'rol = "value.role"', "source 1: map.rol: Extra inputs are not permitted"),
        (GOOD.replace('"chat"', '"chat-("'), "source 1: topics: "),
        ("sources = 5", "afterword.toml: sources: must be written [[sources]]"),
        ("[[sources", "afterword.toml: "),
    ],
)
def test_error_names_the_file_the_source_and_field(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as failed:
        parse_sources(text, "afterword.toml")
    assert said in str(failed.value)


def settings_of(file: Path) -> Settings:
    return load_settings(ingest={"file": file})


def test_missing_sources_file_is_explained_to_its_users(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "absent.toml")
    assert load_sources(settings) == ()
    with pytest.raises(ConfigurationError, match=r"has no \[\[sources\]\]; make one with: afterword init"):
        require_sources(settings)


def test_settings_file_may_hold_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "afterword.toml"
    file.write_text(f'[kafka]\nbootstrap_servers = "kafka:9092"\n[ingest]\nfile = "{file}"\n{GOOD}')
    monkeypatch.setenv("AFTERWORD_CONFIG", str(file))
    settings = load_settings()
    assert settings.kafka.bootstrap_servers == "kafka:9092"
    assert [source.topics for source in load_sources(settings)] == [("chat",)]


OURS = {"messages", "episode.closed"}
TWO = parse_sources(f'[[sources]]\ntopics = ["chat", "sales-.*-chat"]\n{MAP}[[sources]]\ntopics = ["crm"]\n{MAP}', "")


def test_patterns_never_match_own_topics_or_dead_letters() -> None:
    existing = {"chat", "chat2", "sales-eu-chat", "sales-us-chat", "sales-eu-chat.dlq", "crm", *OURS}
    expected = {"chat": 0, "sales-eu-chat": 0, "sales-us-chat": 0, "crm": 1}
    assert match_topics(TWO, existing, OURS) == expected
    every = parse_sources(f'[[sources]]\ntopics = [".*"]\n{MAP}', "")
    assert match_topics(every, existing, OURS).keys() == existing - OURS - {"sales-eu-chat.dlq"}


def test_missing_own_or_repeated_topic_is_refused() -> None:
    for sources, existing, said in [
        (TWO, {"chat"}, "source 2: topic crm does not exist"),
        (parse_sources(GOOD.replace('"chat"', '"messages"'), ""), OURS, "is one that Afterword writes"),
        (parse_sources(GOOD + GOOD.replace('"chat"', '"ch.*"'), ""), {"chat"}, "topic chat is one of source 2, too"),
    ]:
        with pytest.raises(ConfigurationError, match=said):
            match_topics(sources, existing, OURS)


def test_dead_letter_queues_serve_named_or_matching_topics() -> None:
    assert source_topics(TWO, {"sales-eu-chat", "other"}, OURS) == ["chat", "crm", "sales-eu-chat"]
