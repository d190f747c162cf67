"""A wrong setting stops the start with one line that names it; the environment wins over the file."""

from pathlib import Path

import pytest

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("AFTERWORD_")]:
        monkeypatch.delenv(name)


def problem() -> str:
    with pytest.raises(ConfigurationError) as caught:
        load_settings()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("AFTERWORD_EPISODES__OVERLAP", "21", "overlap (21) is larger than max_episode_size (20)"),
        ("AFTERWORD_EPISODES__OVERLAP", "-1", "AFTERWORD_EPISODES__OVERLAP"),
        ("AFTERWORD_EPISODES__MIN_EPISODE_SIZE", "21", "min_episode_size (21) is larger than max_episode_size (20)"),
        ("AFTERWORD_EPISODES__TRIGGER", "ten", "AFTERWORD_EPISODES__TRIGGER"),
        ("AFTERWORD_EPISODES__IDLE_SECONDS", "0", "AFTERWORD_EPISODES__IDLE_SECONDS"),
        ("AFTERWORD_LLM__PROVIDER", "openai", "model is required"),
        ("AFTERWORD_LLM__PROVIDER", "oracle", "AFTERWORD_LLM__PROVIDER"),
        ("AFTERWORD_LLM__CONTEXT_TOKENS", "4000", "AFTERWORD_LLM__CONTEXT_TOKENS"),
        ("AFTERWORD_KAFKA__SESSION_TIMEOUT_SECONDS", "1", "AFTERWORD_KAFKA__SESSION_TIMEOUT_SECONDS"),
        ("AFTERWORD_EPISODES__OVRLAP", "2", "AFTERWORD_EPISODES__OVRLAP"),
        ("AFTERWORD_EPISODE__OVERLAP", "2", "AFTERWORD_EPISODE__OVERLAP"),
        ("AFTERWORD_CONFIG", "/no/such/file", "AFTERWORD_CONFIG"),
        ("AFTERWORD_SUMMARIZER__PROMPT", "{dialogue}", "AFTERWORD_SUMMARIZER__PROMPT: unknown placeholder {dialogue}"),
        ("AFTERWORD_SUMMARIZER__PROMPT", "Be brief.", "__PROMPT: placeholder {conversation_text} is missing"),
        ("AFTERWORD_SUMMARIZER__PROMPT_FILE", "/no/such/file", "__PROMPT_FILE: /no/such/file: No such file"),
        ("AFTERWORD_SUMMARIZER__PRESET", "poetic", "AFTERWORD_SUMMARIZER__PRESET"),
        ("AFTERWORD_ROLLING__MIN_NEW_EPISODES", "21", "AFTERWORD_ROLLING__MIN_NEW_EPISODES"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    monkeypatch.setenv(name, value)
    assert said in problem()


def test_names_that_kubernetes_adds_for_a_service_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AFTERWORD_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("AFTERWORD_PORT_8080_TCP", "tcp://10.0.0.1:8080")
    assert load_settings() == Settings()


def test_the_environment_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "afterword.toml"
    file.write_text("drain_seconds = 5\n[episodes]\noverlap = 1\ntrigger = 7\n")
    monkeypatch.setenv("AFTERWORD_CONFIG", str(file))
    monkeypatch.setenv("AFTERWORD_EPISODES__TRIGGER", "9")
    settings = load_settings()
    assert (settings.drain_seconds, settings.episodes.overlap, settings.episodes.trigger) == (5, 1, 9)


def test_a_file_that_is_not_toml_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("episodes = [")
    monkeypatch.setenv("AFTERWORD_CONFIG", str(file))
    assert "bad.toml" in problem()


def test_a_prompt_in_a_file_is_checked_like_one_that_is_written_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    monkeypatch.setenv("AFTERWORD_SUMMARIZER__PROMPT_FILE", str(file))
    file.write_text("Tell {who} about {conversation_text}")
    assert "AFTERWORD_SUMMARIZER__PROMPT_FILE: unknown placeholder {who}" in problem()
    file.write_text("Summarise {conversation_text}")
    assert load_settings().summarizer.template() == "Summarise {conversation_text}"
    monkeypatch.setenv("AFTERWORD_SUMMARIZER__PROMPT", "{conversation_text}")
    assert "prompt and prompt_file exclude each other" in problem()
