"""Alerts and the dashboard name existing metrics, and each alert says what to do."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.promql import exported, of_the_dashboard, of_the_pages, problems

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
"""Every expression, with its place."""


def test_alerts_and_runbook_sections_match() -> None:
    sections = set(re.findall(r"^## (Afterword\w+)$", RUNBOOK.read_text(), re.M))
    assert sections == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize(("where", "expression"), ASKED, ids=[where for where, _ in ASKED])
def test_prometheus_accepts_every_expression_of_exported_metrics(where: str, expression: str) -> None:
    assert problems(expression, exported()) == []


def test_each_metric_is_on_the_dashboard_or_in_alerts() -> None:
    asked = "\n".join([*of_the_dashboard(), *(rule["expr"] for rule in ALERTS)])
    assert [name for name in exported() if not re.search(rf"\b{name}(_bucket|_count|_sum)?\b", asked)] == []
