"""Build everything for a release, from the commit alone: python -m tools.release [DIRECTORY]

Source distributions and wheels, the chart, a software bill of materials and, if a container engine runs, the image. Two
runs on one commit give the same files, because all timestamps are the commit's and only committed files are read.
"""

import gzip
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE_MODE = 0o644
UNRELEASED = "not released yet"
IMAGE_LOCK = "requirements-image.lock"
CHART = Path("helm", "afterword")
EMBEDDED, ENGINE, TEXT = (Path("distributions", name) for name in ("embedded", "engine", "text"))
"""Projects of the other distributions, within a tree."""
CYCLONEDX = Path("build", "tools-venv", "bin", "cyclonedx-py")
ENGINES = ("docker", "podman")


class ReleaseError(Exception):
    """Reason why no release can be built."""


def projects(tree: Path) -> tuple[Path, ...]:
    """Return the folders of all distributions."""
    return tree, tree / EMBEDDED, tree / ENGINE, tree / TEXT


def version_of(tree: Path) -> str:
    return str(tomllib.loads((tree / "pyproject.toml").read_text())["project"]["version"])


def check_changelog(text: str, version: str) -> None:
    """Require a dated, non-empty section for this version. Raises: ReleaseError."""
    found = re.search(rf"^## {re.escape(version)}\b(?P<rest>.*)\n(?P<body>(?:(?!## ).*\n?)*)", text, re.M)
    if not found:
        raise ReleaseError(f"CHANGELOG.md has no section of {version}; add: ## {version}, YEAR-MONTH-DAY")
    if UNRELEASED in found["rest"] or not re.search(r"\d{4}-\d\d-\d\d", found["rest"]):
        raise ReleaseError(f"CHANGELOG.md has no date for {version}; write: ## {version}, YEAR-MONTH-DAY")
    if not found["body"].strip():
        raise ReleaseError(f"CHANGELOG.md says nothing about {version}")


@contextmanager
def committed(commit: str) -> Iterator[Path]:
    """Yield a directory with exactly the files of a commit."""
    with tempfile.TemporaryDirectory(prefix="afterword-release-") as name:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(name, filter="data")
        yield Path(name)


def build_sdist(tree: Path, out: Path, environment: Mapping[str, str]) -> Path:
    """Build the source distribution of a tree. `environment` has SOURCE_DATE_EPOCH and AFTERWORD_REVISION."""
    built = _build("sdist", tree, out, environment)
    normalise(built, int(environment["SOURCE_DATE_EPOCH"]))
    return built


def build_wheel(source: Path, out: Path, environment: Mapping[str, str]) -> Path:
    """Build the wheel of a tree or a source distribution from a copy, because setuptools leaves files behind."""
    with tempfile.TemporaryDirectory(prefix="afterword-wheel-") as name:
        if source.is_dir():
            tree = shutil.copytree(source, Path(name, "tree"), symlinks=True)
        else:
            with tarfile.open(source) as files:
                files.extractall(name, filter="data")
            [tree] = Path(name).iterdir()
        return _build("wheel", tree, out, environment)


def _build(kind: str, tree: Path, out: Path, environment: Mapping[str, str]) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    code = f"import os, sys, setuptools.build_meta as b; os.umask(0o022); print(b.build_{kind}(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(out.absolute())]
    done = subprocess.run(command, cwd=tree, env=os.environ | environment, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"cannot build the {kind}: {done.stderr[-2000:]}")
    return out / done.stdout.splitlines()[-1]


def normalise(archive: Path, epoch: int) -> None:
    """Repack a tar.gz reproducibly: sorted names, one timestamp, no users, and no name or time in gzip's header."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda found: found.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = FILE_MODE | (0o111 if member.isdir() else 0)
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed:
        compressed.write(packed.getvalue())


def build_chart(tree: Path, out: Path, epoch: int) -> Path:
    """Package the chart like `helm package`, without the files in `.helmignore`, for `helm push`."""
    out.mkdir(parents=True, exist_ok=True)
    chart = tree / CHART
    ignored = {line.strip("/") for line in (chart / ".helmignore").read_text().split()}
    archive = out / f"afterword-chart-{version_of(tree)}.tgz"
    with tarfile.open(archive, "w:gz") as packed:
        for file in sorted(path for path in chart.rglob("*") if path.is_file()):
            inside = file.relative_to(chart)
            if inside.parts[0] not in ignored:
                packed.add(file, Path(chart.name, inside), recursive=False)
    normalise(archive, epoch)
    return archive


def write_bill_of_materials(tree: Path, out: Path) -> Path:
    """Write the image's contents as CycloneDX: its lock, the engine and the text library. Raises: ReleaseError."""
    file = out / f"afterword-{version_of(tree)}.cdx.json"
    command: list[str | Path] = [ROOT / CYCLONEDX, "requirements", "-", "--pyproject", tree / "pyproject.toml"]
    ours = "".join(
        f"{name}=={version_of(tree / at)}\n" for name, at in (("faust-eos", ENGINE), ("afterword-text", TEXT))
    )
    installed = (tree / IMAGE_LOCK).read_text() + ours
    options: list[str | Path] = ["--output-reproducible", "--mc-type", "application", "--of", "JSON", "-o", file]
    done = subprocess.run([*command, *options], check=False, input=installed, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"cannot write the bill of materials: {done.stderr[-2000:]}")
    return file


def build_image(tree: Path, environment: Mapping[str, str]) -> str | None:
    """Build the image if an engine runs, and return its tag."""
    tag = f"afterword:{version_of(tree)}"
    for engine in filter(shutil.which, ENGINES):
        if subprocess.run([engine, "info"], check=False, capture_output=True).returncode:
            continue
        arguments = {
            "VERSION": version_of(tree),
            "REVISION": environment["AFTERWORD_REVISION"],
            "SOURCE_DATE_EPOCH": environment["SOURCE_DATE_EPOCH"],
        }
        given = [f"--build-arg={name}={value}" for name, value in arguments.items()]
        subprocess.run([engine, "build", *given, "--tag", tag, str(tree)], check=True)
        return tag
    return None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def release(out: Path) -> None:
    """Build everything of HEAD into `out`. Raises: ReleaseError."""
    if _git("status", "--porcelain"):
        raise ReleaseError("there are changes that are not committed")
    environment = {
        "AFTERWORD_REVISION": _git("rev-parse", "HEAD"),
        "SOURCE_DATE_EPOCH": _git("log", "-1", "--format=%ct"),
    }
    with committed("HEAD") as tree:
        check_changelog((tree / "CHANGELOG.md").read_text(), version_of(tree))
        sources = [build_sdist(project, out, environment) for project in projects(tree)]
        wheels = [build_wheel(source, out, environment) for source in sources]
        chart = build_chart(tree, out, int(environment["SOURCE_DATE_EPOCH"]))
        made = [*sources, *wheels, chart, write_bill_of_materials(tree, out)]
        image = build_image(tree, environment)
    for file in made:
        sys.stdout.write(f"{file}\n")
    sys.stdout.write(f"{image or 'no image: no container engine runs here'}\n")


if __name__ == "__main__":
    try:
        release(Path(*sys.argv[1:2] or ["dist"]))
    except ReleaseError as error:
        sys.exit(f"release: {error}")
