"""Alerts and the dashboard name metrics that exist, and somebody who is woken finds what to do."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import DASHBOARD, exported, family, of_the_dashboard, of_the_pages, problems, selections

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


def test_links_inside_the_runbook_lead_to_alerts(rules: list[Rule]) -> None:
    linked = set(re.findall(r"\]\(#(\w+)\)", RUNBOOK.read_text()))
    assert linked <= {rule["alert"].lower() for rule in rules}


def test_each_alert_says_what_is_wrong_and_how_urgent_it_is(rules: list[Rule]) -> None:
    assert {rule["labels"]["severity"] for rule in rules} == {"warning", "critical"}
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)


@pytest.mark.parametrize(("where", "expression"), ASKED, ids=[where for where, _ in ASKED])
def test_prometheus_takes_every_expression_and_the_code_exports_what_it_names(where: str, expression: str) -> None:
    assert problems(expression, exported()) == []


def test_expressions_of_alerts_dashboard_and_pages_are_found() -> None:
    selectors = [selector for _, expression in ASKED for selector in selections(expression).selectors]
    assert len({family(name) for name, _ in selectors}) > 20
    assert len([labels for _, labels in selectors if labels]) > 20
    assert [where for where, _ in ASKED if where.startswith("docs/")]


@pytest.mark.parametrize(
    "broken",
    [
        "sum by (role (afterword_ready)",
        'afterword_ready{role="segmenter"',
        "increase(afterword_dead_letters_total)",
        "afterword_ready >",
        "",
    ],
)
def test_a_broken_expression_is_found(broken: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        problems(broken, exported())


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("rate(afterword_made_up_total[5m])", "no metric afterword_made_up_total"),
        ("up == 0", "no metric up"),
        ('afterword_ready{topic="messages"}', "no label topic of afterword_ready"),
        ("sum by (rolle) (afterword_ready)", "no label rolle"),
        ("afterword_ready * on (colour) afterword_build_info", "no label colour"),
    ],
)
def test_a_name_that_the_code_does_not_export_is_found(expression: str, problem: str) -> None:
    assert problems(expression, exported()) == [problem]


def test_the_dashboard_asks_the_data_source_that_was_chosen(dashboard: dict[str, Any]) -> None:
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert all(target["expr"].count("{") >= 1 for panel in panels for target in panel["targets"])
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
