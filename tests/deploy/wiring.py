"""Checks that the resources of a rendered chart fit together: selectors select something, references resolve, ports
exist.

`findings` lists what would not work in a cluster. It knows the values, not the templates.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tests.deploy.helm import Resource

COMPONENT = "app.kubernetes.io/component"
ROLES = ("segmenter", "summarizer", "archiver", "ingest", "webhooks", "server")
SECRETS = {
    "segmenter": {"kafka", "redaction"},
    "summarizer": {"kafka", "redaction", "mongo", "qdrant", "llm", "embedder"},
    "archiver": {"kafka", "redaction", "mongo"},
    "ingest": {"kafka", "redaction", "ingest", "registry"},
    "webhooks": {"kafka", "redaction", "mongo", "webhooks"},
    "server": {"kafka", "redaction", "mongo", "qdrant", "embedder", "reranker", "serve"},
    "topics": {"kafka", "redaction", "ingest"},
    "smoke": {"kafka", "redaction"},
}
"""Sections whose secrets and files each pod gets."""
Findings = Iterator[str]


@dataclass(frozen=True)
class Pod:
    """A pod as described by a workload, a Job or a hook."""

    owner: Resource
    metadata: Resource
    spec: Resource
    claims: tuple[str, ...] = ()

    @property
    def labels(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.metadata.get("labels", {})
        return found

    @property
    def component(self) -> str:
        return self.labels.get(COMPONENT, "")

    @cached_property
    def container(self) -> Resource:
        """Our container, which may have sidecars."""
        [found] = [one for one in self.spec["containers"] if one["name"] == self.component]
        return dict(found)

    @property
    def ports(self) -> set[str | int]:
        declared = self.container.get("ports", [])
        return {port["name"] for port in declared} | {port["containerPort"] for port in declared}


@dataclass(frozen=True)
class Release:
    resources: list[Resource]
    values: Mapping[str, Any]
    """All values, including the chart's defaults."""
    pods: list[Pod] = field(default_factory=list)

    @classmethod
    def of(cls, resources: list[Resource], values: Mapping[str, Any]) -> "Release":
        return cls(resources, values, [pod for resource in resources for pod in _pods_of(resource)])

    @property
    def in_segmenter(self) -> set[str]:
        """Other roles that run in the segmenter's process."""
        return {"summarizer", "archiver"} if self.values["singleProcess"] else set()

    def runs_all(self, component: str) -> bool:
        """Return whether the component's process has the roles of every deployment."""
        return component == "segmenter" and bool(self.in_segmenter)

    def sections_of(self, component: str) -> set[str]:
        return SECRETS["summarizer" if self.runs_all(component) else component]

    def kind(self, *kinds: str) -> list[Resource]:
        return [resource for resource in self.resources if resource["kind"] in kinds]

    def named(self, kind: str, name: str) -> Resource | None:
        return next((one for one in self.kind(kind) if one["metadata"]["name"] == name), None)

    @property
    def workers(self) -> list[Pod]:
        return [pod for pod in self.pods if pod.owner["kind"] in ("Deployment", "StatefulSet")]

    def selected(self, labels: Mapping[str, str] | None) -> list[Pod]:
        return [pod for pod in self.pods if labels and labels.items() <= pod.labels.items()]

    def variables(self, component: str) -> Mapping[str, str]:
        found = [one["data"] for one in self.kind("ConfigMap") if _component(one) == component and "data" in one]
        return found[0] if found else {}


def _pods_of(resource: Resource) -> Iterator[Pod]:
    if resource["kind"] == "Pod":
        yield Pod(resource, resource["metadata"], resource["spec"])
    elif resource["kind"] in ("Deployment", "StatefulSet", "Job"):
        template = resource["spec"]["template"]
        claims = tuple(one["metadata"]["name"] for one in resource["spec"].get("volumeClaimTemplates", []))
        yield Pod(resource, template["metadata"], template["spec"], claims)


def _component(resource: Resource) -> str:
    return str(resource["metadata"].get("labels", {}).get(COMPONENT, ""))


def _name(resource: Resource) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


def findings(resources: list[Resource], values: Mapping[str, Any]) -> list[str]:
    """Return one sentence for each thing that does not fit together."""
    release = Release.of(resources, values)
    return [finding for check in CHECKS for finding in check(release)]


def check_workloads(release: Release) -> Findings:
    enabled = {role for role in ROLES if release.values[role]["enabled"]} - release.in_segmenter
    if {pod.component for pod in release.workers} != enabled:
        yield f"workloads are of {sorted(pod.component for pod in release.workers)}, enabled are {sorted(enabled)}"
    for pod in release.workers:
        owner = pod.owner
        if owner["spec"]["selector"]["matchLabels"].items() - pod.labels.items():
            yield f"{_name(owner)} does not select its own pods"
        if release.selected(owner["spec"]["selector"]["matchLabels"]) != [pod]:
            yield f"{_name(owner)} selects pods of others"
        if (owner["kind"] == "StatefulSet") != (pod.component == "segmenter"):
            yield f"{_name(owner)} is of the wrong kind"
        for spread in pod.spec.get("topologySpreadConstraints", []):
            if release.selected(spread["labelSelector"]["matchLabels"]) != [pod]:
                yield f"{_name(owner)} spreads others' pods"


def check_pods(release: Release) -> Findings:
    for pod in release.pods:
        yield from _mounts(pod, _name(pod.owner))


def _mounts(pod: Pod, who: str) -> Findings:
    volumes = {volume["name"] for volume in pod.spec.get("volumes", [])} | set(pod.claims)
    mounts = pod.container["volumeMounts"]
    if not {mount["name"] for mount in mounts} <= volumes:
        yield f"{who} mounts a volume that is not there"
    if volumes - {mount["name"] for mount in mounts}:
        yield f"{who} has a volume that it does not mount"
    paths = [mount["mountPath"] for mount in mounts]
    if len(set(paths)) < len(paths) or not {"/var/lib/afterword", "/tmp"} <= set(paths):
        yield f"{who} mounts {sorted(paths)}"


def check_probes(release: Release) -> Findings:
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for pod in release.workers:
        for probe, path in paths.items():
            asked = pod.container.get(probe, {}).get("httpGet", {})
            if asked.get("port") not in pod.ports or asked.get("path") != path:
                yield f"{_name(pod.owner)}: {probe} asks {asked}"
        port = release.variables(pod.component).get("AFTERWORD_HEALTH__PORT")
        if not port or int(port) not in pod.ports:
            yield f"{_name(pod.owner)} listens on {port}, and declares {pod.ports}"
        if pod.component == "server" and release.variables("server").get("AFTERWORD_SERVE__PORT") != port:
            yield "the server and its probes have different ports"


def check_settings(release: Release) -> Findings:
    for pod in release.workers:
        for source in pod.container.get("envFrom", []):
            found = release.named("ConfigMap", source["configMapRef"]["name"])
            if found is None or _component(found) != pod.component:
                yield f"{_name(pod.owner)} has the settings of {source}"
        if not pod.container.get("envFrom"):
            yield f"{_name(pod.owner)} has no settings"


def check_secrets(release: Release) -> Findings:
    for pod in release.pods:
        who, env = _name(pod.owner), pod.container["env"]
        names = [one["name"] for one in env]
        if len(set(names)) < len(names):
            yield f"{who} has a variable twice"
        keys = {(one["name"], *_secret_of(one)) for one in env if "secretKeyRef" in one.get("valueFrom", {})}
        wanted = {
            (f"AFTERWORD_{section.upper()}__{name.upper()}", given["existingSecret"], given.get("key", name))
            for section in release.sections_of(pod.component)
            for name, given in (release.values["secrets"].get(section) or {}).items()
        }
        if keys != wanted:
            yield f"{who}: secrets differ in {sorted(keys ^ wanted)}"
        yield from _files(release, pod, who)


def _secret_of(variable: Resource) -> tuple[str, str]:
    reference = variable["valueFrom"]["secretKeyRef"]
    return reference["name"], reference["key"]


def _files(release: Release, pod: Pod, who: str) -> Findings:
    mount = next((one["mountPath"] for one in pod.container["volumeMounts"] if one["name"] == "files"), "")
    sources = [
        source
        for volume in pod.spec.get("volumes", [])
        if volume["name"] == "files"
        for source in volume["projected"]["sources"]
    ]
    there = set()
    for source in sources:
        [(_, content)] = source.items()
        there |= {(f"{mount}/{item['path']}", content["name"], item["key"]) for item in content["items"]}
    wanted = {
        (f"/etc/afterword/{section}/{name}", given.get("existingSecret") or given["existingConfigMap"], given["key"])
        for section in release.sections_of(pod.component)
        for name, given in (release.values["files"].get(section) or {}).items()
    }
    named = {one["value"] for one in pod.container["env"] if str(one.get("value", "")).startswith("/etc/afterword")}
    if there != wanted or named != {path for path, _, _ in wanted}:
        yield f"{who}: files differ in {sorted(there ^ wanted)}, {sorted(named)}"


def check_services(release: Release) -> Findings:
    for one in release.kind("Service"):
        pods = release.selected(one["spec"]["selector"])
        if [pod.component for pod in pods] != [_component(one)]:
            yield f"{_name(one)} leads to {[pod.component for pod in pods]}"
        for port in one["spec"]["ports"]:
            if any(port["targetPort"] not in pod.ports for pod in pods):
                yield f"{_name(one)}: port {port['targetPort']} is no port of its pods"
    served = {_component(one) for one in release.kind("Service")}
    for pod in release.workers:
        if pod.component not in served:
            yield f"{_name(pod.owner)} has no Service, and is not monitored"


def check_routes(release: Release) -> Findings:
    backends = [
        (_name(one), path["backend"]["service"]["name"], path["backend"]["service"]["port"])
        for one in release.kind("Ingress")
        for rule in one["spec"]["rules"]
        for path in rule["http"]["paths"]
    ] + [
        (_name(one), backend["name"], {"number": backend["port"]})
        for one in release.kind("HTTPRoute")
        for rule in one["spec"]["rules"]
        for backend in rule["backendRefs"]
    ]
    for who, name, port in backends:
        service = release.named("Service", name)
        ports = service["spec"]["ports"] if service and _component(service) == "server" else []
        if not any(port in ({"name": one["name"]}, {"number": one["port"]}) for one in ports):
            yield f"{who} leads to {name} {port}, which is not the server's"


def check_budgets(release: Release) -> Findings:
    budgets = release.kind("PodDisruptionBudget")
    for one in budgets:
        if [pod.component for pod in release.selected(one["spec"]["selector"]["matchLabels"])] != [_component(one)]:
            yield f"{_name(one)} does not select the pods of its role alone"
    wanted_of = {
        pod.component for pod in release.workers if release.values[pod.component]["podDisruptionBudget"]["enabled"]
    }
    if {_component(one) for one in budgets} != wanted_of:
        yield f"budgets are of {sorted(map(_component, budgets))}"


def check_policies(release: Release) -> Findings:
    if not release.values["networkPolicy"]["enabled"]:
        return
    policies = release.kind("NetworkPolicy")
    for one in policies:
        pods = release.selected(one["spec"]["podSelector"].get("matchLabels"))
        if not pods:
            yield f"{_name(one)} selects no pod"
        for rule in one["spec"].get("ingress", []):
            open_to = {port["port"] for port in rule["ports"]}
            if any(not open_to <= pod.ports for pod in pods if pod in release.workers):
                yield f"{_name(one)} opens {open_to}, which is no port of its pods"


def check_monitoring(release: Release) -> Findings:
    for one in release.kind("ServiceMonitor"):
        labels = one["spec"]["selector"]["matchLabels"]
        found = [each for each in release.kind("Service") if labels.items() <= each["metadata"]["labels"].items()]
        if {_component(each) for each in found} != {pod.component for pod in release.workers}:
            yield f"{_name(one)} selects the Services of {sorted(map(_component, found))}"
        for endpoint in one["spec"]["endpoints"]:
            if any(endpoint["port"] not in {port["name"] for port in each["spec"]["ports"]} for each in found):
                yield f"{_name(one)}: {endpoint['port']} is no port of the Services"
            if endpoint.get("path") != "/metrics":
                yield f"{_name(one)} scrapes {endpoint}"


CHECKS: tuple[Callable[[Release], Findings], ...] = (
    *(check_workloads, check_pods, check_probes, check_settings, check_secrets),
    *(check_services, check_routes, check_budgets, check_policies, check_monitoring),
)
