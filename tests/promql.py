"""Parses PromQL as Prometheus does: which series an expression selects, and by which labels."""

import json
import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
METRICS = ROOT / "docs" / "reference" / "metrics.md"
DASHBOARD = ROOT / "helm" / "afterword" / "dashboards" / "afterword.json"
GIVEN = {"namespace", "instance", "job"}
"""Labels that Prometheus adds."""
BUCKET = "le"


@dataclass
class Selections:
    """The labels by metric of each selector, and the labels by which results are grouped or matched."""

    selectors: list[tuple[str, set[str]]] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)


def selections(expression: str) -> Selections:
    """Return what the expression selects. Raises: ValueError if Prometheus would refuse it."""
    import promql_parser as promql

    found = Selections()

    def take(part: promql.Expr) -> None:
        match part:
            case promql.VectorSelector():
                found.selectors.append((part.name or "", {one.name for one in part.matchers.matchers}))
            case promql.AggregateExpr() if part.modifier:
                found.grouped.update(part.modifier.labels)
            case promql.BinaryExpr() if part.modifier and part.modifier.matching:
                found.grouped.update(part.modifier.matching.labels)

    promql.walk(promql.parse(expression), take)
    return found


def problems(expression: str, exported: Mapping[str, Set[str]]) -> list[str]:
    """Return the metrics and labels that the code does not export. Raises: ValueError if Prometheus would refuse it."""
    found = selections(expression)
    known = set().union(*exported.values()) | GIVEN | {BUCKET}
    unknown = [f"no metric {name}" for name, _ in found.selectors if family(name) not in exported]
    foreign = [
        f"no label {label} of {name}"
        for name, labels in found.selectors
        for label in sorted(labels - exported.get(family(name), labels) - GIVEN - {BUCKET})
    ]
    return [*unknown, *foreign, *(f"no label {label}" for label in sorted(found.grouped - known))]


def exported() -> dict[str, set[str]]:
    """Return the labels by metric, from the generated reference: | `name` | type | `label`, `label` | meaning |."""
    rows = [
        line.split("|")[1:-1]
        for line in METRICS.read_text().splitlines()
        if line.startswith(("| `afterword_", "| `gen_ai_"))
    ]
    return {name.strip(" `"): set(re.findall(r"`(\w+)`", "".join(rest))) for name, *rest in rows}


def family(name: str) -> str:
    """Return the name of the histogram that a series belongs to."""
    return re.sub("_(bucket|sum|count)$", "", name) if "_seconds_" in name else name


def of_the_dashboard() -> Iterator[str]:
    """Return the expressions of all panels, with an interval instead of Grafana's variable."""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"].replace("$__rate_interval", "5m")


def of_the_pages() -> Iterator[tuple[str, str]]:
    """Return the expressions with our metrics in the documentation, with their pages."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for code in re.findall(r"`([^`\n]*\bafterword_[a-z_]+[^`\n]*)`", page.read_text()):
            if re.search(r"[(\[{]", code):
                yield page.relative_to(ROOT).as_posix(), code
