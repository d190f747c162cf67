"""Lengths of a summary and of the rolling one, as set."""

from datetime import UTC
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from afterword.streams.settings import Settings
from afterword.streams.summarizer.agent import summary_rules
from afterword.streams.summarizer.summary import SummaryRules
from tests.rows import with_rows


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
