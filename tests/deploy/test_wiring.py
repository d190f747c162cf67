"""The chart's resources fit together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm import Helm
from tests.deploy.wiring import findings

CHART = Path(__file__).parents[2] / "helm" / "afterword"


def effective(file: Path) -> Mapping[str, Any]:
    """Merge a file's values into the chart's, as Helm does."""
    merged = _merged(yaml.safe_load((CHART / "values.yaml").read_text()), yaml.safe_load(file.read_text()))
    return dict(merged)


def _merged(ours: Any, given: Any) -> Any:
    if not (isinstance(ours, dict) and isinstance(given, dict)):
        return given
    both = {**ours, **{name: _merged(ours.get(name), value) for name, value in given.items()}}
    return {name: value for name, value in both.items() if value is not None}


@pytest.mark.parametrize("file", sorted((CHART / "ci").glob("*.yaml")), ids=lambda file: file.stem)
def test_selectors_references_and_ports_resolve(helm: Helm, file: Path) -> None:
    assert findings(helm.resources("--values", file), effective(file)) == []
