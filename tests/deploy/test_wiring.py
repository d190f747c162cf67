"""The resources of the chart belong together, and a miswiring of any kind is found."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.chart_mutants import MUTANTS, Mutant
from tests.deploy.helm import KUBERNETES, Helm
from tests.deploy.wiring import findings

CHART = Path(__file__).parents[2] / "helm" / "afterword"


def effective(file: Path) -> Mapping[str, Any]:
    """The chart's values with those of a file over them, as Helm merges them."""
    merged = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(file.read_text()))
    return dict(merged)


def _merged(ours: Any, given: Any) -> Any:
    if not (isinstance(ours, dict) and isinstance(given, dict)):
        return given
    both = {**ours, **{name: _merged(ours.get(name), value) for name, value in given.items()}}
    return {name: value for name, value in both.items() if value is not None}


@pytest.mark.parametrize("file", sorted((CHART / "ci").glob("*.yaml")), ids=lambda file: file.stem)
def test_selectors_select_and_references_resolve_and_ports_exist(helm: Helm, file: Path) -> None:
    assert findings(helm.resources("--values", file), effective(file)) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_miswiring_is_found(helm: Helm, mutant: Mutant, tmp_path: Path) -> None:
    file = CHART / "ci" / f"{mutant.values}-values.yaml"
    assert complaint(replace(helm, chart=mutant.planted(CHART, tmp_path)), file) is not None


def complaint(helm: Helm, file: Path) -> str | None:
    """What Helm, kubeconform or the wiring has against the chart; None if nothing."""
    try:
        rendered = helm.template("--values", file)
        found = findings([one for one in yaml.safe_load_all(rendered) if one], effective(file))
        if not found:
            helm.conform(rendered, KUBERNETES[0])
    except (AssertionError, KeyError, ValueError) as error:
        return str(error)
    return found[0] if found else None
