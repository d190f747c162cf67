"""The chart without Helm: it is up to date, and everything it names exists."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from afterword.streams.settings import Settings, locations, variable
from afterword.streams.triggers import TRIGGER_PRESETS, parse_trigger, read_trigger
from helm.generate import CHART, generated
from tests.promql import exported, of_the_dashboard, of_the_pages, problems
from tests.rows import with_rows

GUIDE = CHART.parents[1] / "docs" / "how-to" / "kubernetes.md"
TEMPLATES = sorted(CHART.glob("templates/**/*.*"))
PRODUCTION = {("kafka", "bootstrap_servers"), ("kafka", "replication_factor"), ("kafka", "min_insync_replicas")}
"""Settings whose default in the chart differs from the code's, because it is for a cluster."""


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return loaded


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generated((CHART / "values.yaml").read_text())


@pytest.fixture(scope="module")
def validator(files: dict[str, str]) -> Draft7Validator:
    return Draft7Validator(yaml.safe_load(files["values.schema.json"]))


@pytest.mark.parametrize("name", ["values.schema.json", "README.md", "topics.yaml", "cross_fields.yaml"])
def test_generated_chart_files_are_up_to_date(files: dict[str, str], name: str) -> None:
    assert (CHART / name).read_text() == files[name], f"{name} is stale: make docs"


def test_every_variable_set_by_a_template_exists() -> None:
    named = {name for file in TEMPLATES for name in re.findall(r"\bAFTERWORD_[A-Z_]*[A-Z]\b", file.read_text())}
    assert named - {variable(location) for location, _ in locations(Settings)} == set()
    assert "AFTERWORD_KAFKA__GROUP_INSTANCE_ID" in named


def test_chart_defaults_equal_the_codes_except_for_clusters(values: dict[str, Any]) -> None:
    settings = Settings().model_dump()
    sections = {name: part for name, part in values["settings"].items() if isinstance(part, dict)}
    given = {(name, key): value for name, part in sections.items() for key, value in part.items()}
    differing = {place for place, value in given.items() if settings[place[0]][place[1]] != value}
    assert differing == PRODUCTION | {("qdrant", "url")}
    assert values["settings"]["drain_seconds"] == settings["drain_seconds"]


@pytest.mark.parametrize("file", sorted((CHART / "ci").glob("*.yaml")), ids=lambda file: file.stem)
def test_tested_chart_values_fit_the_schema(file: Path, validator: Draft7Validator) -> None:
    given = {name: value for name, value in yaml.safe_load(file.read_text()).items() if name != "secrets"}
    assert [error.message for error in validator.iter_errors(given)] == []


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.S))
def test_documented_chart_values_fit_the_schema(block: str, validator: Draft7Validator) -> None:
    assert [error.message for error in validator.iter_errors(yaml.safe_load(block))] == []


@with_rows
def test_schema_refuses_meaningless_values(given: dict[str, Any], named: str, validator: Draft7Validator) -> None:
    [error] = validator.iter_errors(given)
    assert named in error.message


@pytest.mark.parametrize(
    "trigger",
    [
        *(10, 1, 0, -1, 2.5, True, "zero", "sliding", *TRIGGER_PRESETS, [], {}, None),
        *({"messages": 3}, {"messages": 0}, {"message": 3}, {"messages": 3, "turns": 2}),
        *([{"turns": 2}, {"any": [{"messages": 9}, {"tokens": 100}]}], {"any": []}, {"all": [{"messages": "3"}]}),
    ],
)
def test_schema_accepts_the_triggers_the_code_accepts(trigger: Any, validator: Draft7Validator) -> None:
    try:
        parse_trigger(read_trigger(trigger), tokens=1)
        is_taken = True
    except ValueError:
        is_taken = False
    assert validator.is_valid({"settings": {"episodes": {"trigger": trigger}}}) == is_taken


RUNBOOK = CHART.parents[1] / "docs" / "runbook.md"
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
