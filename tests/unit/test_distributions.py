"""Files that users install: everything needed at run time, nothing else, identical from each build."""

import os
import shutil
import tarfile
import time
import tomllib
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.extras import BASE, run_with
from tools.release import ENGINE, TEXT, build_sdist, build_wheel, projects

pytestmark = pytest.mark.nightly  # building them takes half a minute

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "afterword": "afterword",
    "consumers": "afterword/consumers",
    "schemas": "afterword/schemas",
    "streams": "afterword/streams",
}
"""Folders of the repository, and where they are in the wheel."""
BUILT_FROM = ("pyproject.toml", "setup.py", "LICENSE", "README.md")
REVISION = "0123456789abcdef0123456789abcdef01234567"
ENVIRONMENT = {"SOURCE_DATE_EPOCH": "1790000000", "AFTERWORD_REVISION": REVISION}
EMBEDDED_PATH = (
    "import afterword.local.dev, afterword.local.demo, afterword.embedded; print(afterword.embedded.__file__)"
)
SERVICE = """
import schemas, streams, consumers, afterword, sys
from afterword import MessageCreated, Producer, SummarySubscriber, load_settings
import afterword.schemas, afterword.streams, afterword.consumers
assert schemas.OURS and streams.OURS and consumers.OURS
assert load_settings().kafka.messages_topic == "messages"
print(afterword.__file__)
"""


EMBEDDED_FILES = {f"afterword/embedded/{path.name}" for path in (ROOT / "afterword" / "embedded").glob("*.*")}


class Built(NamedTuple):
    sdist: Path
    wheel: Path
    embedded_sdist: Path
    embedded_wheel: Path
    engine_sdist: Path
    engine_wheel: Path
    text_sdist: Path
    text_wheel: Path


def copied(to: Path) -> Path:
    """Copy what a checkout holds that a build may read, so that nothing is left behind in it."""
    for name in (*PACKAGES, "distributions", "tests", "tools", "benchmarks"):
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, to)
    return to


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("tree"))


def build(tree: Path, out: Path) -> Built:
    """Build what `make release` builds of a tree, and leave files of setuptools in it."""
    sdists = [build_sdist(project, out, ENVIRONMENT) for project in projects(tree)]
    return Built(*(file for sdist in sdists for file in (sdist, build_wheel(sdist, out, ENVIRONMENT))))


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("built")
    return build(shutil.copytree(tree, out / "tree", symlinks=True), out)


@pytest.fixture(scope="module")
def names(built: Built) -> set[str]:
    return set(files_of(built.wheel))


def files_of(wheel: Path) -> Mapping[str, str]:
    """Return the names of a wheel's files, with hashes of their contents."""
    with zipfile.ZipFile(wheel) as files:
        return {name: sha256(files.read(name)).hexdigest() for name in files.namelist()}


def test_wheel_has_every_file_of_its_packages(names: set[str]) -> None:
    files = {
        f"{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files - EMBEDDED_FILES <= names
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"afterword"}
    assert not [name for name in names if "embedded" in name.lower()]


def test_other_distributions_have_exactly_their_packages(built: Built) -> None:
    assert {"afterword/embedded/jars.lock"} <= EMBEDDED_FILES == files_in(built.embedded_wheel)
    assert files_in(built.engine_wheel) == files_below(ENGINE / "faust_eos")
    assert files_in(built.text_wheel) == files_below(TEXT / "afterword_text")


def files_in(wheel: Path) -> set[str]:
    return {name for name in files_of(wheel) if ".dist-info/" not in name}


def files_below(package: Path) -> set[str]:
    found = [path for path in (ROOT / package).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path.relative_to(ROOT / package.parent)) for path in found}


def test_two_builds_are_equal_byte_for_byte(built: Built, tmp_path: Path) -> None:
    elsewhere = copied(tmp_path)  # another directory, other times of files
    later = time.time() - 86_400
    for path in elsewhere.rglob("*.py"):
        os.utime(path, (later, later))
    again = build(elsewhere, tmp_path / "out")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in built]


def test_source_distribution_holds_no_links_or_user_names(built: Built) -> None:
    members = []
    for sdist in (built.sdist, built.embedded_sdist, built.engine_sdist, built.text_sdist):
        with tarfile.open(sdist) as files:
            members += files.getmembers()
    assert all(member.isfile() or member.isdir() for member in members)
    assert {(member.uname, member.gname, member.uid) for member in members} == {("", "", 0)}


def test_wheels_of_afterword_make_one_package(built: Built, tmp_path: Path) -> None:
    for wheel in (built.wheel, built.embedded_wheel):
        with zipfile.ZipFile(wheel) as files:
            files.extractall(tmp_path)
    done = run_with("dev", EMBEDDED_PATH, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert (done.stdout, done.stderr) == (f"{tmp_path}/afterword/embedded/__init__.py\n", "")


@pytest.fixture
def service(built: Built, tmp_path: Path) -> dict[str, str]:
    """Return an environment with the wheel and with a service's own packages, named like this repository's folders."""
    with zipfile.ZipFile(built.wheel) as files:
        files.extractall(tmp_path / "site")
    for name in ("schemas", "streams", "consumers"):
        (tmp_path / "service" / name).mkdir(parents=True)
        (tmp_path / "service" / name / "__init__.py").write_text("OURS = True\n")
    return os.environ | {"PYTHONPATH": f"{tmp_path / 'service'}:{tmp_path / 'site'}"}


def test_same_named_packages_do_not_hide_ours(service: dict[str, str], tmp_path: Path) -> None:
    done = run_with(BASE, SERVICE, cwd=tmp_path, env=service)
    assert done.stderr == ""
    assert done.stdout.startswith(str(tmp_path / "site"))


def test_built_version_and_revision_are_printed(service: dict[str, str], tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    for extra in (BASE, "worker"):
        done = run_with(extra, "from afterword.__main__ import main; main()", "--version", cwd=tmp_path, env=service)
        assert (done.stdout, done.stderr) == (f"afterword {version} (revision {REVISION})\n", "")
