"""Alerts and the dashboard name metrics that exist, and somebody who is woken finds what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import DASHBOARD, exported, of_the_dashboard, of_the_pages, problems

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "afterword"
RUNBOOK = ROOT / "docs" / "runbook.md"
Rule = dict[str, Any]


ALERTS: list[Rule] = yaml.safe_load((CHART / "rules" / "afterword.yaml").read_text())["groups"][0]["rules"]
ASKED = [
    *((rule["alert"], rule["expr"]) for rule in ALERTS),
    *((f"dashboard {n}", expr) for n, expr in enumerate(of_the_dashboard())),
    *of_the_pages(),
]
"""Every expression, and where it is."""


@pytest.fixture
def rules() -> list[Rule]:
    return ALERTS


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return loaded


def test_each_alert_has_a_section_in_the_runbook_and_the_runbook_no_other(rules: list[Rule]) -> None:
    sections = set(re.findall(r"^## (Afterword\w+)$", RUNBOOK.read_text(), re.M))
    assert sections == {rule["alert"] for rule in rules}


def test_each_alert_says_what_is_wrong_and_how_urgent_it_is(rules: list[Rule]) -> None:
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


@pytest.mark.parametrize(("where", "expression"), ASKED, ids=[where for where, _ in ASKED])
def test_prometheus_takes_every_expression_and_the_code_exports_what_it_names(where: str, expression: str) -> None:
    assert problems(expression, exported()) == []


def test_the_dashboard_asks_the_data_source_that_was_chosen(dashboard: dict[str, Any]) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert all(target["expr"].count("{") >= 1 for panel in panels for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
