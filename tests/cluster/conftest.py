"""A control plane without nodes, for tests that `make test-cluster` runs."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import pytest
import yaml

from afterword.streams.private import cache_directory
from tests.cluster.control_plane import Api, Resource, control_plane, settled
from tests.cluster.release import Release
from tests.cluster.stand_in_kubelet import StandInKubelet

VARIABLE = "AFTERWORD_TEST_CLUSTER"
HERE = Path(__file__).parent
DEPLOY = HERE.parent / "deploy"
CHART = HERE.parents[1] / "helm" / "afterword"
PATIENCE_SECONDS = 3600
"""The first run builds Kubernetes and Helm from source."""
CLASSES = [
    {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"},
    *(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": 1}
        for name in ("segmenter", "summarizer", "topics", "smoke", "high")
    ),
]
"""Classes that the values in `ci` name; without them the API server refuses the pods."""
POLICY = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
NUMBERS = count()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(PATIENCE_SECONDS))


@pytest.fixture(scope="session")
def tools() -> Path:
    """Return the folder with Helm and the control plane, building them if they are missing. Skips the test unless they
    were asked for."""
    if not os.environ.get(VARIABLE):
        pytest.skip(f"no control plane is asked for: make test-cluster builds and runs one ({VARIABLE} is not set)")
    if shutil.which("go") is None:
        pytest.skip("the control plane is built from Go modules, and there is no go")
    prefix = cache_directory() / "deploy-tools"
    for script in (DEPLOY / "tools" / "helm.sh", HERE / "tools" / "cluster.sh"):
        subprocess.run([script, prefix], check=True)
    return prefix


@pytest.fixture(scope="session")
def api(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """Run an API server with the custom resources that the chart can make and the classes that its values name."""
    with control_plane(tools / "bin" / "cluster", tmp_path_factory.mktemp("cluster")) as api:
        for definition in definitions(tools / "crds"):
            api.create(definition)
        for resource in CLASSES:
            api.create(resource)
        for definition in definitions(tools / "crds"):
            settled(partial(is_served, api, definition))
        yield api


def definitions(folder: Path) -> Iterator[Resource]:
    """Return the custom resources of KEDA, the Prometheus Operator and the Gateway API, and stand-ins for Strimzi's."""
    for file in (*sorted(folder.glob("*.yaml")), HERE / "strimzi.yaml"):
        yield from (one for one in yaml.safe_load_all(file.read_text()) if one)


def is_served(api: Api, definition: Resource) -> bool:
    """Return whether resources of this kind can be created."""
    spec = definition["spec"]
    return all(api.has(f"/apis/{spec['group']}/{one['name']}/{spec['names']['plural']}") for one in spec["versions"])


@pytest.fixture(scope="session")
def kubelet(api: Api) -> Iterator[StandInKubelet]:
    kubelet = StandInKubelet(api)
    with kubelet.running():
        yield kubelet


@pytest.fixture
def release(api: Api, kubelet: StandInKubelet, tools: Path) -> Release:
    """Make a release in a new namespace with the policy `restricted`."""
    namespace = f"chat-{next(NUMBERS)}"
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": POLICY}})
    settled(lambda: api.has(f"/api/v1/namespaces/{namespace}/serviceaccounts/default"))
    return Release(api, tools, CHART, namespace)
