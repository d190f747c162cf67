"""The chart on a real API server, which has no kubelet, so no pod runs."""

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import CHART
from tests.cluster.release import NAME, Release
from tests.deploy.builds import registry
from tests.deploy.helm import HELMS
from tools.release import ROOT, build_chart, version_of

VALUES = sorted((*(CHART / "ci").glob("*.yaml"), *(CHART / "examples").glob("*.yaml")))
with_values = pytest.mark.parametrize("values", VALUES, ids=lambda file: file.stem)
with_helms = pytest.mark.parametrize("folder", HELMS)
OURS = ("--set", "segmenter.initContainers=null,segmenter.sidecars=null")
"""Leave out the extra containers of `everything`, because the policy refuses them."""
STRIMZI = ("--set", "topics.provisioner=strimzi,strimzi.cluster=events")


@with_values
@with_helms
def test_release_installs_whole_and_an_unchanged_upgrade_changes_nothing(
    release: Release, values: Path, folder: str
) -> None:
    given = (NAME, release.chart, "--values", values, *OURS)
    release.helm(folder, "install", *given)
    release.settle()
    before = release.live(folder)
    assert [
        lost for wanted in release.manifest(folder) for lost in missing(wanted, before[release.api.place(wanted)])
    ] == []
    release.helm(folder, "upgrade", *given)
    assert generations(release.live(folder)) == generations(before)
    release.helm(folder, "test", NAME)
    release.helm(folder, "uninstall", NAME, "--wait")


def generations(live: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return each resource's generation, without the Job, because each revision creates its own."""
    return {
        path: (one["metadata"]["uid"], one["metadata"].get("generation"))
        for path, one in live.items()
        if one["kind"] != "Job"
    }


def missing(wanted: Any, has: Any, place: str = "") -> list[str]:
    """Return the places where the API server's version differs from what it was given."""
    if isinstance(wanted, dict) and isinstance(has, dict):
        return [lost for name in wanted for lost in missing(wanted[name], has.get(name), f"{place}.{name}")]
    if isinstance(wanted, list) and isinstance(has, list) and len(wanted) == len(has):
        return [
            lost
            for at, (one, other) in enumerate(zip(wanted, has, strict=True))
            for lost in missing(one, other, f"{place}.{at}")
        ]
    return [] if wanted in (has, {}, [], None) or str(wanted) == str(has) else [f"{place}: {wanted!r}, not {has!r}"]


@with_helms
def test_released_chart_installs_from_a_registry(release: Release, folder: str, tmp_path: Path) -> None:
    package = build_chart(ROOT, tmp_path, 1_700_000_000)
    with registry(release.tools / "bin" / "crane") as address:
        pushed = release.try_helm(folder, "push", package, f"oci://{address}/charts", "--plain-http")
        assert pushed.returncode == 0, pushed.stderr
        there = (f"oci://{address}/charts/afterword", "--version", version_of(ROOT), "--plain-http")
        installed = release.try_helm(folder, "install", NAME, *there)
        assert installed.returncode == 0, installed.stderr
    release.settle()


def test_next_helm_version_takes_over_a_release(release: Release) -> None:
    given = (NAME, release.chart)
    release.helm("helm-3.14", "install", *given)
    release.settle()
    before = generations(release.live("bin"))
    for folder, *options in (("bin",), ("helm-4",), ("helm-4", "--server-side=true"), ("bin",)):
        release.helm(folder, "upgrade", *given, *options)
        assert generations(release.live("bin")) == before, (folder, options)


@with_helms
def test_enabling_a_scaler_keeps_the_running_pods(release: Release, folder: str) -> None:
    scaled = ("--set", "summarizer.autoscaling.kind=hpa,segmenter.autoscaling.kind=keda")
    given = (NAME, release.chart, "--set", "summarizer.replicas=4,segmenter.replicas=3")
    release.helm(folder, "install", *given)
    release.helm(folder, "upgrade", *given, *scaled)
    assert (release.replicas("summarizer"), release.replicas("segmenter")) == (4, 3)
    release.scale("summarizer", 6)
    release.scale("segmenter", 5)
    release.helm(folder, "upgrade", *given, *scaled, "--set", "image.tag=next")
    assert (release.replicas("summarizer"), release.replicas("segmenter")) == (6, 5)


@with_helms
def test_strimzi_topic_with_another_partition_count_is_refused(release: Release, folder: str) -> None:
    given = (NAME, release.chart, *STRIMZI)
    release.helm(folder, "install", *given)
    release.helm(folder, "upgrade", *given)
    refused = release.try_helm(folder, "upgrade", *given, "--set", "settings.kafka.partitions=30")
    assert refused.returncode != 0
    assert "settings.kafka.partitions (30): KafkaTopic memory-afterword-" in refused.stderr


@with_helms
def test_rollback_restores_the_earlier_release(release: Release, folder: str) -> None:
    values = CHART / "ci" / "strimzi-job-values.yaml"
    given = (NAME, release.chart, "--values", values)
    release.helm(folder, "install", *given, "--set", "summarizer.replicas=3")
    before = {path: one.get("spec") for path, one in release.live(folder).items()}
    release.helm(folder, "upgrade", *given, "--set", "image.tag=next,summarizer.replicas=1,server.enabled=false")
    release.helm(folder, "rollback", NAME, "1")
    release.settle()
    after = {path: one.get("spec") for path, one in release.live(folder).items()}
    assert after.keys() == before.keys()


@with_helms
def test_disabling_a_scaler_sets_the_requested_pods(release: Release, folder: str) -> None:
    given = (NAME, release.chart, "--set", "summarizer.replicas=2")
    release.helm(folder, "install", *given, "--set", "summarizer.autoscaling.kind=hpa")
    release.scale("summarizer", 5)
    release.helm(folder, "upgrade", *given, *forced(folder))
    assert release.replicas("summarizer") == 2


@with_helms
def test_rollback_keeps_the_pods_of_a_scaled_role(release: Release, folder: str) -> None:
    given = (NAME, release.chart, "--set", "summarizer.autoscaling.kind=hpa")
    release.helm(folder, "install", *given)
    release.scale("summarizer", 5)
    release.helm(folder, "upgrade", *given, "--set", "image.tag=next")
    assert release.replicas("summarizer") == 5
    release.helm(folder, "rollback", NAME, "1")
    assert release.replicas("summarizer") == 5


@with_helms
def test_rollback_to_before_a_scaler_restores_its_pods(release: Release, folder: str) -> None:
    given = (NAME, release.chart, "--set", "summarizer.replicas=2")
    release.helm(folder, "install", *given)
    release.helm(folder, "upgrade", *given, "--set", "summarizer.autoscaling.kind=hpa")
    release.scale("summarizer", 5)
    release.helm(folder, "rollback", NAME, "1", *forced(folder))
    assert release.replicas("summarizer") == 2


def forced(folder: str) -> tuple[str, ...]:
    """Helm 4 uses server-side apply, which does not change a number of replicas that a scaler has set."""
    return ("--force-conflicts",) if folder == "helm-4" else ()
