"""Length of a summary and cadence of the rolling one, as set."""

from typing import Any

import pytest

from afterword.streams.settings import Settings
from afterword.streams.summarizer.rolling import SummaryRules
from afterword.streams.summarizer_app import summary_rules


def settings(**given: Any) -> Settings:
    return Settings.model_validate(given)


def test_by_default_a_summary_has_1000_characters_and_every_episode_updates_the_rolling_one() -> None:
    assert summary_rules(settings()) == SummaryRules(800, min_new_episodes=1, min_tokens=0, max_summary_length=1000)


def test_the_cadence_of_the_known_system_can_be_set() -> None:
    rules = summary_rules(settings(rolling={"min_new_episodes": 5, "min_tokens": 200}))
    assert (rules.min_new_episodes, rules.min_tokens) == (5, 200)


@pytest.mark.parametrize(
    ("given", "characters"),
    [
        ({"episodes": {"trigger": "long_conversation"}}, 1500),
        ({"episodes": {"trigger": "high_frequency"}}, 1000),
        ({"episodes": {"trigger": "long_conversation"}, "summarizer": {"max_summary_length": 700}}, 700),
        ({"summarizer": {"max_summary_length": 2000}}, 2000),
    ],
)
def test_the_preset_of_the_trigger_says_how_long_a_summary_may_be_unless_it_is_set(
    given: dict[str, Any], characters: int
) -> None:
    assert summary_rules(settings(**given)).max_summary_length == characters
