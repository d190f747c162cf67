"""Reports pods as a kubelet would, without running any: Jobs have succeeded, and all others are ready."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.control_plane import POLL_SECONDS, Api, Resource

SUCCEEDED = {"phase": "Succeeded"}
READY = {
    "phase": "Running",
    "conditions": [{"type": name, "status": "True"} for name in ("Initialized", "ContainersReady", "Ready")],
}


class StandInKubelet:
    """Reports on pods as they appear."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._ends = threading.Event()

    @contextmanager
    def running(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _run(self) -> None:
        while not self._ends.wait(POLL_SECONDS):
            for pod in self._api.items("/api/v1/pods?fieldSelector=status.phase=Pending"):
                self._report(pod)

    def _report(self, pod: Resource) -> None:
        """Report the pod's status, unless the pod is gone by now."""
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        status = SUCCEEDED if pod["spec"]["restartPolicy"] == "Never" else READY
        self._api.patch(path, {"status": status}, "kubelet")
