"""Rules between settings, as data for the chart, so that it refuses whatever streams/settings.py would, but before any
pod starts. tests/deploy/test_settings_of_the_chart.py compares chart and code.
"""

from collections.abc import Iterator
from typing import Any

from afterword.streams.settings import Bound, Rule, Settings


def rules() -> list[dict[str, Any]]:
    return [{"section": section, **_as_data(rule)} for section, rule in _declared()]


def _declared() -> Iterator[tuple[str, Rule | Bound]]:
    for section, field in Settings.model_fields.items():
        for rule in getattr(field.annotation, "rules", ()):
            if not getattr(rule, "given", ()):  # the chart's template cannot evaluate such a rule
                yield section, rule


def _as_data(rule: Rule | Bound) -> dict[str, Any]:
    if isinstance(rule, Bound):
        return {"most": rule._asdict()}
    found = {name: list(value) for name, value in rule._asdict().items() if value and name != "when"}
    return {"when": {name: list(choices) for name, choices in rule.when.items()}, **found}


def defaults() -> dict[str, dict[str, Any]]:
    """Return the code's defaults of the settings whose values the rules compare, by section."""
    found: dict[str, dict[str, Any]] = {}
    settings = Settings.model_construct()
    for section, rule in _declared():
        for name in (rule.smaller, rule.larger) if isinstance(rule, Bound) else rule.when:
            value = getattr(getattr(settings, section), name)
            if value is not None:
                found.setdefault(section, {})[name] = value
    return found
