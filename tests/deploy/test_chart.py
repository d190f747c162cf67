"""The chart, rendered by Helm with every file of values in `ci`, and checked by common tools."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from afterword.operating.topics import wanted_topics
from afterword.streams.settings import Kafka, Settings
from tests.deploy.builds import registry
from tests.deploy.helm import HELMS, KUBERNETES, Helm, Resource
from tests.deploy.wiring import Release
from tests.promql import exported, of_the_dashboard, problems
from tools.release import ROOT, build_chart, version_of

CHART = ROOT / "helm" / "afterword"
SECRETS = {
    "AFTERWORD_SERVE__JWT_JWKS_URL": "https://login.example/keys",
    "AFTERWORD_KAFKA__OAUTH_TOKEN_ENDPOINT": "https://login.example/token",
    "AFTERWORD_REDACTION__PATTERNS": '{"TICKET": "T-[0-9]+"}',
    "AFTERWORD_WEBHOOKS__ENDPOINTS": "{}",
}
"""Values of Secrets for settings that do not accept arbitrary text."""
LOADED = """
import json, os, sys
from afterword.streams.settings import load_settings
for variables in json.load(sys.stdin):
    os.environ.clear()
    os.environ.update(variables)
    print(load_settings().health.host)
"""
"""A program that loads the settings of each environment, one after the other."""
VALUES = sorted((*(CHART / "ci").glob("*.yaml"), *(CHART / "examples").glob("*.yaml")))
with_values = pytest.mark.parametrize("values", VALUES, ids=lambda file: file.stem)
CUSTOM = {"ScaledObject", "ServiceMonitor", "PrometheusRule", "KafkaTopic", "KafkaUser", "HTTPRoute"}


@with_values
@pytest.mark.parametrize("folder", HELMS)
def test_helm_lint_passes(helm: Helm, values: Path, folder: str) -> None:
    replace(helm, folder=folder).run("lint", "--strict", "--kube-version", KUBERNETES[0], CHART, "--values", values)


@with_values
@pytest.mark.parametrize("version", KUBERNETES)
def test_every_resource_is_valid_for_kubernetes(helm: Helm, values: Path, version: str) -> None:
    said = helm.conform(helm.template("--values", values, version=version), version)
    assert "Invalid: 0, Errors: 0, Skipped: 0" in said


@pytest.mark.parametrize("version", KUBERNETES)
def test_numeric_names_stay_strings(helm: Helm, version: str) -> None:
    options = ("--namespace", "17", "--kube-version", version, "--set-string", "secrets.mongo.uri.existingSecret=23")
    rendered = helm.run("template", "42", helm.chart, *options, "--set-string", "secrets.mongo.uri.key=5")
    assert "Invalid: 0, Errors: 0, Skipped: 0" in helm.conform(rendered, version)


def test_every_suite_of_the_chart_passes(helm: Helm) -> None:
    assert "Tests:       0 passed" not in helm.run("unittest", "--strict", CHART)


def test_invalid_kubernetes_resource_is_detected(helm: Helm) -> None:
    broken = helm.template().replace("terminationGracePeriodSeconds", "terminationGraceSeconds")
    with pytest.raises(AssertionError, match="terminationGraceSeconds"):
        helm.conform(broken, KUBERNETES[0])


def test_custom_resources_appear_only_on_request(helm: Helm) -> None:
    assert {resource["kind"] for resource in helm.resources()} & CUSTOM == set()


def test_strimzi_topics_equal_those_of_the_command(helm: Helm) -> None:
    made = helm.resources("--set", "topics.provisioner=strimzi,strimzi.cluster=events")
    specs = [resource["spec"] for resource in made if resource["kind"] == "KafkaTopic"]
    kafka = Kafka(replication_factor=3, min_insync_replicas=2)
    assert {topic_of(spec) for spec in specs} == {
        (topic.name, topic.partitions, topic.replication_factor, tuple(sorted(topic.created_with.items())))
        for topic in wanted_topics(Settings(kafka=kafka))
    }


def topic_of(spec: dict[str, Any]) -> tuple[Any, ...]:
    configs = sorted((name, str(value)) for name, value in spec["config"].items())
    return spec["topicName"], spec["partitions"], spec["replicas"], tuple(configs)


def test_setting_of_a_role_restarts_only_that_roles_pods(helm: Helm) -> None:
    given = ((), ("--set", "summarizer.settings.llm.timeout_seconds=5"))
    before, after = (checksums(helm.resources(*arguments)) for arguments in given)
    assert {name for name in before if before[name] != after[name]} == {"memory-afterword-summarizer"}


def checksums(resources: list[Resource]) -> dict[str, str]:
    workers = [resource for resource in resources if resource["kind"] in ("StatefulSet", "Deployment")]
    return {
        w["metadata"]["name"]: w["spec"]["template"]["metadata"]["annotations"]["checksum/settings"] for w in workers
    }


@with_values
def test_pod_variables_are_settings_that_load(helm: Helm, values: Path) -> None:
    """Made-up values replace those that would come from Secrets."""
    resources = helm.resources("--values", values)
    release = Release.of(resources, {})
    given = [{**variables_of(pod.container), **release.variables(pod.component)} for pod in release.pods]
    command = [sys.executable, "-c", LOADED]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.0.0.0"] * len(given) != []


def variables_of(container: Resource) -> dict[str, str]:
    return {one["name"]: one.get("value") or SECRETS.get(one["name"], "secret") for one in container["env"]}


@with_values
@pytest.mark.parametrize("folder", HELMS)
def test_every_helm_version_renders_the_same(helm: Helm, values: Path, folder: str) -> None:
    other = replace(helm, folder=folder)
    assert by_name(other.resources("--values", values)) == by_name(helm.resources("--values", values))


def by_name(resources: list[Resource]) -> dict[str, Resource]:
    return {f"{resource['kind']} {resource['metadata']['name']}": resource for resource in resources}


@pytest.mark.parametrize("folder", HELMS)
def test_secret_setting_is_rendered_once(helm: Helm, folder: str) -> None:
    """Helm 4 applies on the server, which refuses a list that has the same variable twice."""
    given = ("--set", "secrets.kafka.bootstrap_servers.existingSecret=events", "--set", "topics.provisioner=job")
    pods = Release.of(replace(helm, folder=folder).resources(*given), {}).pods
    for pod in pods:
        names = [one["name"] for one in pod.container["env"]]
        assert len(names) == len(set(names)), pod.component
        [servers] = [one for one in pod.container["env"] if one["name"] == "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS"]
        assert servers["valueFrom"]["secretKeyRef"]["name"] == "events"


def test_prometheus_accepts_the_alerts(helm: Helm) -> None:
    file = CHART / "rules" / "afterword.yaml"
    assert "SUCCESS" in helm.promtool("check", "rules", "--lint=all", "--lint-fatal", file)


def test_alerts_fire_exactly_when_they_should(helm: Helm) -> None:
    helm.promtool("test", "rules", Path(__file__).parent / "alerts.yaml")


@with_values
def test_prometheus_accepts_a_releases_alerts(helm: Helm, values: Path, tmp_path: Path) -> None:
    file = rules_of(helm, tmp_path, "--values", values, "--set", "prometheusRule.enabled=true")
    assert "SUCCESS" in helm.promtool("check", "rules", "--lint=all", "--lint-fatal", file)
    [group] = yaml.safe_load(file.read_text())["groups"]
    assert [found for rule in group["rules"] for found in problems(rule["expr"], exported())] == []


def rules_of(helm: Helm, directory: Path, *arguments: str | Path) -> Path:
    """Write the chart's alerts to a file for promtool."""
    [rule] = [one for one in helm.resources(*arguments) if one["kind"] == "PrometheusRule"]
    file = directory / "rules.yaml"
    file.write_text(yaml.safe_dump(rule["spec"]))
    return file


def test_alerts_of_a_release_concern_no_other(helm: Helm, tmp_path: Path) -> None:
    rules_of(helm, tmp_path, "--set", "prometheusRule.enabled=true,serviceMonitor.enabled=true,server.enabled=false")
    series = {
        'afterword_build_info{role="segmenter", namespace="chat", job="memory-afterword-segmenter"}': "1x60",
        'afterword_build_info{role="summarizer", namespace="chat", job="memory-afterword-summarizer"}': "1x60",
        'afterword_build_info{role="archiver", namespace="chat", job="other-afterword-archiver"}': "1x60",
        'afterword_ready{namespace="chat", job="other-afterword-archiver", instance="a"}': "0x60",
        'afterword_ready{namespace="mail", job="memory-afterword-archiver", instance="a"}': "0x60",
    }
    missing = {
        "exp_labels": {"role": "archiver", "namespace": "chat", "severity": "critical"},
        "exp_annotations": {
            "summary": "No archiver is running",
            "description": "Messages wait in Kafka until one runs. They are lost only if retention deletes them first.",
        },
    }
    expected = {"AfterwordRoleMissing": [missing], "AfterwordNotReady": []}
    checks = [{"eval_time": "1h", "alertname": name, "exp_alerts": alerts} for name, alerts in expected.items()]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": "1m", "input_series": given, "alert_rule_test": checks}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}))
    helm.promtool("test", "rules", file)


def test_prometheus_accepts_every_dashboard_query(helm: Helm, tmp_path: Path) -> None:
    rules = [{"record": f"asked:{n}", "expr": expr} for n, expr in enumerate(sorted(set(of_the_dashboard())))]
    file = tmp_path / "asked.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    helm.promtool("check", "rules", file)


@pytest.mark.parametrize("folder", HELMS)
def test_released_chart_is_pushed_to_a_registry_and_rendered(helm: Helm, folder: str, tmp_path: Path) -> None:
    one = replace(helm, folder=folder)
    package = build_chart(ROOT, tmp_path, 1_700_000_000)
    with registry(helm.prefix / "bin" / "crane") as address:
        one.run("push", package, f"oci://{address}/charts", "--plain-http")
        there = (f"oci://{address}/charts/afterword", "--version", version_of(ROOT), "--plain-http")
        fetched = one.run("template", "memory", *there, "--namespace", "chat", "--kube-version", KUBERNETES[0])
    assert fetched == one.template()
