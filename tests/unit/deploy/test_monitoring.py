"""Alerts and the dashboard name metrics that exist, and somebody who is woken finds what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "afterword"
RUNBOOK = ROOT / "docs" / "runbook.md"
METRICS = ROOT / "docs" / "reference" / "metrics.md"
METRIC = re.compile(r"\bafterword_[a-z_]+\b")
SELECTED = re.compile(r"(\w+)(?:=|!=|=~|!~)\"")
LABELS = {"namespace", "instance"}
"""Given by Prometheus, not by us."""

Rule = dict[str, Any]


@pytest.fixture(scope="module")
def rules() -> list[Rule]:
    [group] = yaml.safe_load((CHART / "rules" / "afterword.yaml").read_text())["groups"]
    found: list[Rule] = group["rules"]
    return found


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CHART / "dashboards" / "afterword.json").read_text())
    return loaded


@pytest.fixture(scope="module")
def expressions(rules: list[Rule], dashboard: dict[str, Any]) -> list[str]:
    shown = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return [rule["expr"] for rule in rules] + shown


def exported() -> dict[str, set[str]]:
    """Labels by metric, from the generated reference: | `name` | type | `label`, `label` | meaning |."""
    rows = [line.split("|")[1:-1] for line in METRICS.read_text().splitlines() if line.startswith("| `afterword_")]
    return {name.strip(" `"): set(re.findall(r"`(\w+)`", "".join(rest))) for name, *rest in rows}


def without_suffix(name: str) -> str:
    """Name of the histogram that a series belongs to."""
    return re.sub("_(bucket|sum|count)$", "", name) if "_seconds_" in name else name


def test_each_alert_has_a_section_in_the_runbook_and_the_runbook_no_other(rules: list[Rule]) -> None:
    sections = set(re.findall(r"^## (Afterword\w+)$", RUNBOOK.read_text(), re.M))
    assert sections == {rule["alert"] for rule in rules}


def test_links_inside_the_runbook_lead_to_alerts(rules: list[Rule]) -> None:
    linked = set(re.findall(r"\]\(#(\w+)\)", RUNBOOK.read_text()))
    assert linked <= {rule["alert"].lower() for rule in rules}


def test_each_alert_says_what_is_wrong_and_how_urgent_it_is(rules: list[Rule]) -> None:
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


def test_every_metric_that_is_named_exists(expressions: list[str]) -> None:
    named = {without_suffix(name) for expression in expressions for name in METRIC.findall(expression)}
    assert named - exported().keys() == set()
    assert len(named) > 20


def test_every_label_that_is_named_is_one_of_the_metrics(expressions: list[str]) -> None:
    labels = {label for known in exported().values() for label in known} | LABELS | {"le"}
    grouped = {name.strip() for e in expressions for by in re.findall(r"by \(([^)]*)\)", e) for name in by.split(",")}
    selected = {name for e in expressions for name in re.findall(SELECTED, e)}
    assert (grouped | selected) - labels == set()


def test_every_label_that_selects_series_of_a_metric_is_one_of_its_own(expressions: list[str]) -> None:
    labels = exported()
    pairs = [pair for e in expressions for pair in re.findall(r"\b(afterword_[a-z_]+)\{([^}]*)\}", e)]
    foreign = {
        (metric, label)
        for metric, selection in pairs
        for label in re.findall(SELECTED, selection)
        if label not in labels[without_suffix(metric)] | LABELS
    }
    assert foreign == set()
    assert len(pairs) > 20


def test_the_dashboard_asks_the_data_source_that_was_chosen(dashboard: dict[str, Any]) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert all(target["expr"].count("{") >= 1 for panel in panels for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
