"""Requirements of `make release` on a commit, and the habits that keep them true."""

import re
import subprocess
import tarfile
from pathlib import Path

import pytest
import yaml

from tests.extras import embedded_project, project_of
from tools.locks import GROUP_LOCKS, LOCKS, problems, required_of_locks, requirements
from tools.release import EMBEDDED, ReleaseError, build_chart, check_changelog, committed, version_of

ROOT = Path(__file__).parents[2]
CHANGELOG = """\
# Changelog

## 0.2.0, 2026-11-30
- Faster.

## 0.1.0, not released yet
New.

## 0.0.1, 2026-01-01

## 0.0.0, 2025-01-01
Old.
"""


def test_a_version_with_a_dated_section_may_be_released() -> None:
    check_changelog(CHANGELOG, "0.2.0")


@pytest.mark.parametrize(
    ("version", "problem"),
    [("0.3.0", "no section of 0.3.0"), ("0.1.0", "no date for 0.1.0"), ("0.0.1", "says nothing about 0.0.1")],
)
def test_a_version_that_the_changelog_does_not_describe_may_not(version: str, problem: str) -> None:
    with pytest.raises(ReleaseError, match=re.escape(problem)):
        check_changelog(CHANGELOG, version)


def test_the_version_is_in_one_place_and_the_chart_and_the_second_distribution_follow() -> None:
    version = version_of(ROOT)
    assert version_of(ROOT / EMBEDDED) == version
    assert f"afterword=={version}" in embedded_project()["dependencies"]
    assert f"afterword-embedded=={version}" in project_of(ROOT)["optional-dependencies"]["dev"]
    chart = yaml.safe_load((ROOT / "helm/afterword/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    assert f"ARG VERSION={version}" not in (ROOT / "Dockerfile").read_text()
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_files_of_a_commit_are_all_that_is_built_from() -> None:
    listed = subprocess.check_output(["git", "ls-tree", "-r", "--name-only", "HEAD"], cwd=ROOT, text=True).split("\n")
    with committed("HEAD") as tree:
        found = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file() or path.is_symlink()}
        assert found == set(filter(None, listed))


def test_the_chart_is_packaged_without_its_tests_and_twice_the_same(tmp_path: Path) -> None:
    first, second = (build_chart(ROOT, tmp_path / name, 1_700_000_000) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    with tarfile.open(first) as packed:
        names = packed.getnames()
    assert {"afterword/Chart.yaml", "afterword/cross_fields.yaml", "afterword/templates/_pod.tpl"} <= set(names)
    assert [name for name in names if name.startswith(("afterword/ci", "afterword/tests"))] == []


def test_the_locks_name_no_registry() -> None:
    locks = [*ROOT.glob("requirements*.lock"), ROOT / "afterword/embedded/jars.lock"]
    assert len(locks) >= 5
    assert [lock.name for lock in locks if re.search(r"https?://|--index-url|--find-links", lock.read_text())] == []


def test_ci_runs_every_python_that_the_package_names() -> None:
    project = project_of(ROOT)
    named = {c.rpartition(" ")[2] for c in project["classifiers"] if re.search(r"Python :: 3\.\d+$", c)}
    [job] = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"].values()
    assert set(job["strategy"]["matrix"]["python"]) == named
    assert any(".ci/run" in step.get("run", "") for step in job["steps"])


def test_hooks_run_what_make_lint_runs_and_fetch_nothing() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["id"]: hook for hook in repository["hooks"]}
    assert set(hooks) == {"ruff", "ruff-format", "mypy", "import-linter", "locks"}
    assert all(hook["language"] == "system" for hook in hooks.values())
    lint = (ROOT / "Makefile").read_text()
    for hook in ("ruff", "ruff-format", "mypy", "import-linter"):
        assert hooks[hook]["entry"].removeprefix(".venv") in lint.replace("$(BIN)", "/bin")


def test_each_lock_is_made_for_the_extras_that_it_is_compared_with() -> None:
    made = re.findall(r"^\t\$\(LOCK\) ((?:--extra \S+ )+).*-o (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert {name: tuple(extras.split()[1::2]) for extras, name in made} == LOCKS
    groups = re.findall(r"^\t\$\(COMPILE\) --group (\S+) .*-o (\S+)$", (ROOT / "Makefile").read_text(), re.M)
    assert {name: group for group, name in groups} == GROUP_LOCKS
    assert {*LOCKS, *GROUP_LOCKS} == {lock.name for lock in ROOT.glob("requirements*.lock")}


def test_the_locks_are_those_of_the_project() -> None:
    for name, required in required_of_locks().items():
        assert list(problems(required, (ROOT / name).read_text())) == []


def test_what_the_embedded_servers_require_is_locked_for_the_tests() -> None:
    required = {one for one in embedded_project()["dependencies"] if not one.startswith("afterword==")}
    assert required <= set(project_of(ROOT)["optional-dependencies"]["test"])


def test_a_lock_that_is_older_than_the_project_is_found() -> None:
    project = {
        "name": "afterword",
        "dependencies": ["orjson>=3.10"],
        "optional-dependencies": {"worker": ["afterword[memory]"], "memory": ["motor>=3.8", "mmh3"]},
    }
    lock = "orjson==3.11.0 \\\n    --hash=sha256:0\nmotor==3.7.1 ; python_version > '3'\n"
    assert list(problems(requirements(project, ["worker"]), lock)) == [
        "motor>=3.8: the lock has 3.7.1",
        "mmh3: the lock has no version",
    ]
