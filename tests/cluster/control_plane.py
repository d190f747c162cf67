"""Runs a Kubernetes control plane on this machine: etcd, the API server and the controllers, without nodes."""

import secrets
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from afterword.embedded.claims import HOST, free_ports
from afterword.embedded.process import Process
from tests.certificates import Authority

Resource = dict[str, Any]
SETTLED_SECONDS = 60
POLL_SECONDS = 0.1


class Api:
    """A client of the API server, with the rights of an administrator."""

    def __init__(self, client: httpx.Client, kubeconfig: Path) -> None:
        self.kubeconfig = kubeconfig
        self._client = client
        self._kinds: dict[tuple[str, str], str] = {}

    def get(self, path: str) -> Resource:
        """Like the other calls, raises AssertionError with the server's answer."""
        return _answer(self._client.get(path))

    def items(self, path: str) -> list[Resource]:
        found: list[Resource] = self.get(path)["items"]
        return found

    def create(self, resource: Resource) -> None:
        _answer(self._client.post(self.folder(resource), json=resource))

    def patch(self, path: str, changed: Resource, manager: str) -> bool:
        """Patch a resource on behalf of a client. Returns whether the API server accepted the patch."""
        headers = {"content-type": "application/merge-patch+json"}
        return self._client.patch(path, json=changed, headers=headers, params={"fieldManager": manager}).is_success

    def has(self, path: str) -> bool:
        return self._client.get(path).is_success

    def place(self, resource: Resource) -> str:
        """Return the path of a resource in a manifest."""
        return f"{self.folder(resource)}/{resource['metadata']['name']}"

    def folder(self, resource: Resource) -> str:
        """Return the path of all resources of this kind in the namespace."""
        version, kind = resource["apiVersion"], resource["kind"]
        group = f"/{'apis' if '/' in version else 'api'}/{version}"
        if (version, kind) not in self._kinds:
            known = self.get(group)["resources"]
            self._kinds |= {(version, one["kind"]): one["name"] for one in known if "/" not in one["name"]}
        namespace = resource["metadata"].get("namespace")
        return f"{group}/{f'namespaces/{namespace}/' if namespace else ''}{self._kinds[version, kind]}"


def _answer(response: httpx.Response) -> Resource:
    assert response.is_success, f"{response.request.url.path}: {response.text}"
    answered: Resource = response.json()
    return answered


@contextmanager
def control_plane(program: Path, directory: Path) -> Iterator[Api]:
    """Run etcd, the API server and the controllers until the end of the block."""
    clients, peers, secure, controllers = free_ports(4)
    token = secrets.token_hex()
    (directory / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    authority = Authority(directory)
    own = authority.sign("server")
    kubeconfig = _kubeconfig(directory / "kubeconfig", f"https://{HOST}:{secure}", authority.file, token)
    etcd = f"http://{HOST}:{clients}"
    api_server = {
        "etcd-servers": etcd,
        "bind-address": HOST,
        "advertise-address": HOST,
        "endpoint-reconciler-type": "none",
        "secure-port": secure,
        "tls-cert-file": own.certificate,
        "tls-private-key-file": own.key,
        "token-auth-file": directory / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.0.0.0/16",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": own.key,
        "service-account-key-file": own.certificate,
    }
    manager = {
        "kubeconfig": kubeconfig,
        "bind-address": HOST,
        "secure-port": controllers,
        "cert-dir": directory,
        "leader-elect": "false",
        "service-account-private-key-file": own.key,
        "root-ca-file": authority.file,
    }
    verified = ssl.create_default_context(cafile=authority.file)
    headers = {"authorization": f"Bearer {token}"}
    running: list[Process] = []
    with httpx.Client(base_url=f"https://{HOST}:{secure}", headers=headers, verify=verified, trust_env=False) as client:
        try:
            urls = [str(directory / "etcd"), etcd, f"http://{HOST}:{peers}"]
            running.append(Process("etcd", [str(program), "etcd", *urls], directory / "etcd.log"))
            server = Process("apiserver", [str(program), "apiserver", *_flags(api_server)], directory / "apiserver.log")
            running.append(server)
            settled(lambda: is_ready(client, server))
            command = [str(program), "controllers", *_flags(manager)]
            running.append(Process("controllers", command, directory / "controllers.log"))
            yield Api(client, kubeconfig)
        finally:
            for process in reversed(running):
                process.stop()


def is_ready(client: httpx.Client, server: Process) -> bool:
    """Return whether the API server accepts requests. Raises: ProcessExited."""
    server.check()
    try:
        return client.get("/readyz").is_success
    except httpx.TransportError:
        return False


def _flags(given: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in given.items()]


def _kubeconfig(file: Path, address: str, authority: Path, token: str) -> Path:
    cluster = {"name": "c", "cluster": {"server": address, "certificate-authority": str(authority)}}
    user = {"name": "u", "user": {"token": token}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    whole = {"clusters": [cluster], "users": [user], "contexts": [context], "current-context": "x"}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **whole}))
    file.chmod(0o600)  # Helm warns if others can read the file
    return file


def settled(probe: Callable[[], bool], seconds: float = SETTLED_SECONDS) -> None:
    """Wait until the probe succeeds. Raises: AssertionError."""
    deadline = time.monotonic() + seconds
    while not probe():
        assert time.monotonic() < deadline, "it does not settle"
        time.sleep(POLL_SECONDS)
