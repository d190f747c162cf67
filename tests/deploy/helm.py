"""Helm and related tools, as `tools/helm.sh` installs them."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

KUBERNETES = ("1.33.0", "1.37.0")
HELMS = ("bin", "helm-3.14", "helm-4")
"""Folders of three versions of Helm: the one that most tests use, the oldest that the chart supports, and the next
major one."""
Resource = dict[str, Any]


@dataclass(frozen=True)
class Helm:
    prefix: Path
    chart: Path
    schemas: Path
    """Schemas of resources that no package contains; see the README in that folder."""
    folder: str = "bin"
    """One of HELMS."""

    def run(self, *arguments: str | Path) -> str:
        """Run a command. Raises: AssertionError with Helm's output."""
        return self._run(self.prefix / self.folder / "helm", *arguments)

    def promtool(self, *arguments: str | Path) -> str:
        return self._run(self.prefix / "bin" / "promtool", *arguments)

    def template(self, *arguments: str | Path, version: str = KUBERNETES[0]) -> str:
        return self.run("template", "memory", self.chart, "--namespace", "chat", "--kube-version", version, *arguments)

    def resources(self, *arguments: str | Path) -> list[Resource]:
        return [resource for resource in yaml.safe_load_all(self.template(*arguments)) if resource]

    def conform(self, manifests: str, version: str) -> str:
        """Run kubeconform and return its output. Every resource must be known and have no unknown field."""
        places = (
            self.prefix / "schemas" / f"v{version}-standalone-strict" / "{{ .ResourceKind }}{{ .KindSuffix }}.json",
            self.prefix / "schemas" / "crds" / "{{ .Group }}" / "{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json",
            self.schemas / "{{ .ResourceKind }}_{{ .ResourceAPIVersion }}.json",
        )
        options = [option for place in places for option in ("-schema-location", place)]
        command = ("-strict", "-summary", "-kubernetes-version", version, *options)
        return self._run(self.prefix / "bin" / "kubeconform", *command, text=manifests)

    def _run(self, program: Path, *arguments: str | Path, text: str | None = None) -> str:
        environment = {**os.environ, "HELM_PLUGINS": os.fspath(self.prefix / "plugins")}
        done = subprocess.run(
            [program, *arguments], input=text, capture_output=True, text=True, env=environment, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
