"""What `make release` requires of a commit."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.extras import embedded_project, project_of
from tools.release import EMBEDDED, ENGINE, TEXT, build_chart, committed, version_of

ROOT = Path(__file__).parents[2]


def test_chart_and_distributions_share_one_version() -> None:
    version, ours = version_of(ROOT), project_of(ROOT)
    assert {version_of(ROOT / part) for part in (EMBEDDED, ENGINE, TEXT)} == {version}
    assert f"afterword=={version}" in embedded_project()["dependencies"]
    assert f"afterword-embedded=={version}" in ours["optional-dependencies"]["dev"]
    assert f"faust-eos=={version}" in ours["optional-dependencies"]["worker"]
    assert f"afterword-text=={version}" in ours["dependencies"]
    chart = yaml.safe_load((ROOT / "helm/afterword/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert f"ARG VERSION={version}" not in (ROOT / "Dockerfile").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_every_folder_of_distributions_can_be_installed() -> None:
    """`pip install ./distributions/*` is what the README says."""
    inside = [path for path in (ROOT / "distributions").iterdir() if path.name != "__pycache__"]
    assert [path.name for path in inside if not (path / "pyproject.toml").is_file()] == []


def test_release_is_built_from_committed_files_only() -> None:
    listed = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, text=True).split("\n")
    with committed("HEAD") as tree:
        found = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() or path.is_symlink()}
        assert found == set(filter(None, listed))


def test_chart_packages_reproducibly_without_tests(tmp_path: Path) -> None:
    first, second = (build_chart(ROOT, tmp_path / name, 1_700_000_000) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as packed:
        names = packed.getnames()
    assert {"afterword/Chart.yaml", "afterword/cross_fields.yaml", "afterword/templates/_pod.tpl"} <= set(names)
    assert [name for name in names if name.startswith(("afterword/ci", "afterword/tests"))] == []


def test_lock_files_contain_no_registry_url() -> None:
    locks = [*ROOT.glob("requirements*.lock"), ROOT / "afterword/embedded/jars.lock"]
    assert len(locks) >= 5
    assert [lock.name for lock in locks if re.search(r"https?://|--index-url|--find-links", lock.read_text())] == []


def test_embedded_requirements_are_locked_for_tests() -> None:
    required = {one for one in embedded_project()["dependencies"] if not one.startswith("afterword==")}
    assert required <= set(project_of(ROOT)["optional-dependencies"]["test"])


PATTERNS = {
    "private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
    "AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "Google API key": r"\bAIza[0-9A-Za-z_-]{35}\b",
    "GitHub token": r"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{22,})\b",
    "GitLab token": r"\bglpat-[0-9A-Za-z_-]{20,}\b",
    "Slack token": r"\bxox[abprs]-[0-9A-Za-z-]{10,}\b",
    "OpenAI or Anthropic key": r"\bsk-(?:proj-|ant-)?[0-9A-Za-z_-]{32,}\b",
    "Hugging Face token": r"\bhf_[0-9A-Za-z]{30,}\b",
    "PyPI token": r"\bpypi-[0-9A-Za-z_-]{50,}\b",
    "JSON Web Token": r"\beyJ[0-9A-Za-z_-]{10,}\.eyJ[0-9A-Za-z_-]{10,}\.[0-9A-Za-z_-]*",
}
"""Patterns of secrets, as their makers publish them."""
SECRET = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS.values()))


def committed_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git work tree")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_committed_files_hold_no_secret() -> None:
    found = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in committed_files()
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1)
        if SECRET.search(line)
    ]
    assert found == []
