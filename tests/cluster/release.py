"""A release of the chart, and its resources on the API server."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.cluster.control_plane import Api, Resource, settled

NAME = "memory"


@dataclass(frozen=True)
class Release:
    """The release `memory` in a namespace."""

    api: Api
    tools: Path
    chart: Path
    namespace: str

    def helm(self, folder: str, *arguments: str | Path) -> str:
        """Run one of HELMS. Raises: AssertionError if it fails, or if it or the API server warns of anything."""
        done = self.try_helm(folder, *arguments)
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return done.stdout

    def try_helm(self, folder: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        there = ("--namespace", self.namespace, "--kubeconfig", self.api.kubeconfig)
        command = [self.tools / folder / "helm", *arguments, *there]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def manifest(self, folder: str) -> list[Resource]:
        """Return the resources of the release, without hooks."""
        found = [one for one in yaml.safe_load_all(self.helm(folder, "get", "manifest", NAME)) if one]
        return [{**one, "metadata": {"namespace": self.namespace, **one["metadata"]}} for one in found]

    def live(self, folder: str) -> dict[str, Resource]:
        """Return these resources as the API server has them, by path."""
        paths = map(self.api.place, self.manifest(folder))
        return {path: self.api.get(path) for path in paths}

    def path(self, role: str) -> str:
        """Return the path of a role's StatefulSet or Deployment."""
        kind = "statefulsets" if role == "segmenter" else "deployments"
        return f"/apis/apps/v1/namespaces/{self.namespace}/{kind}/{NAME}-afterword-{role}"

    def replicas(self, role: str) -> int:
        found: int = self.api.get(self.path(role))["spec"]["replicas"]
        return found

    def scale(self, role: str, replicas: int) -> None:
        """Change the number of pods as a scaler does."""
        scaled = {"spec": {"replicas": replicas}}
        assert self.api.patch(f"{self.path(role)}/scale", scaled, "kube-controller-manager")

    def all(self, kind: str) -> list[Resource]:
        """Return the namespace's resources of this kind, which belongs to the core API or to `apps`."""
        groups = {"deployments": "apis/apps/v1", "statefulsets": "apis/apps/v1", "jobs": "apis/batch/v1"}
        return self.api.items(f"/{groups.get(kind, 'api/v1')}/namespaces/{self.namespace}/{kind}")

    def settle(self) -> None:
        """Wait until every requested pod is ready. Raises: AssertionError with the pods that were refused."""
        settled(lambda: self.refused() != [] or (self.is_scaled() and all(map(is_complete, self.workloads()))))
        assert self.refused() == []

    def is_scaled(self) -> bool:
        """Return whether each HorizontalPodAutoscaler has raised its target to its minimum."""
        scalers = self.api.items(f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers")
        running = {one["metadata"]["name"]: one["spec"]["replicas"] for one in self.workloads()}
        return all(running[one["spec"]["scaleTargetRef"]["name"]] >= one["spec"]["minReplicas"] for one in scalers)

    def workloads(self) -> list[Resource]:
        return [*self.all("deployments"), *self.all("statefulsets")]

    def refused(self) -> list[str]:
        """Return why pods were not created."""
        return [event["message"] for event in self.all("events") if event["reason"] == "FailedCreate"]


def is_complete(workload: Resource) -> bool:
    """Return whether the controllers have processed the latest version, and all of its pods are new and ready."""
    status, wanted = workload["status"], workload["spec"]["replicas"]
    numbers = {status.get(name, 0) for name in ("replicas", "readyReplicas", "updatedReplicas")}
    return status.get("observedGeneration") == workload["metadata"]["generation"] and numbers == {wanted}
