"""The packaged chart is pushed to a registry, and rendered from there."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.deploy.helm import HELMS, KUBERNETES, Helm
from tests.deploy.registry import registry
from tools.release import ROOT, build_chart, version_of


@pytest.mark.parametrize("folder", HELMS)
def test_released_chart_is_pushed_to_a_registry_and_rendered(helm: Helm, folder: str, tmp_path: Path) -> None:
    one = replace(helm, folder=folder)
    package = build_chart(ROOT, tmp_path, 1_700_000_000)
    with registry(helm.prefix / "bin" / "crane") as address:
        one.run("push", package, f"oci://{address}/charts", "--plain-http")
        there = (f"oci://{address}/charts/afterword", "--version", version_of(ROOT), "--plain-http")
        fetched = one.run("template", "memory", *there, "--namespace", "chat", "--kube-version", KUBERNETES[0])
    assert fetched == one.template()
