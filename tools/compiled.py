"""Build the package with its segmenter compiled, as the image has it, below build/compiled: python -m tools.compiled

Prints the variables with which Python imports that in place of the sources: `env $(python -m tools.compiled) COMMAND`.
The sources stay as they are: nothing compiled is beside them, where it would hide the next change.
"""

import os
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

from afterword.version import revision
from tools.release import ROOT, build_wheel

BUILDS = ROOT / "build" / "compiled"
FOLDERS = ("afterword", "consumers", "schemas", "streams")
FILES = ("pyproject.toml", "setup.py", "LICENSE", "README.md")
IGNORED = shutil.ignore_patterns("__pycache__")
EMBEDDED = Path("afterword", "embedded")
"""What the wheel leaves to another distribution."""
DIGITS = 16


def has_compiler() -> bool:
    """Return whether C can be compiled for this Python."""
    command = (sysconfig.get_config_var("CC") or "").split()
    return bool(command and shutil.which(command[0])) and Path(sysconfig.get_path("include"), "Python.h").is_file()


def copied(to: Path) -> Path:
    """Copy what the wheel is built from."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, to / name, symlinks=True, ignore=IGNORED)
    for name in FILES:
        shutil.copy(ROOT / name, to)
    return to


def digest_of(tree: Path) -> str:
    """Digest of the files, and of what makes C of them."""
    said = sha256(f"{sys.version} mypy {version('mypy')}".encode())
    for file in sorted(path for path in tree.rglob("*") if path.is_file()):
        said.update(f"\n{file.relative_to(tree)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return said.hexdigest()[:DIGITS]


def build() -> Path:
    """Return the directory of the packages; what was built of the same files is taken. Raises: ReleaseError."""
    with tempfile.TemporaryDirectory(prefix="afterword-compiled-") as name:
        tree = copied(Path(name, "tree"))
        built = BUILDS / digest_of(tree)
        if built.is_dir():
            return built
        environment = {"AFTERWORD_COMPILE": "1", "AFTERWORD_REVISION": revision()}
        unpacked = Path(name, "unpacked")
        with zipfile.ZipFile(build_wheel(tree, Path(name, "wheels"), environment)) as files:
            files.extractall(unpacked)
        shutil.copytree(tree / EMBEDDED, unpacked / EMBEDDED)
        for older in BUILDS.glob("*"):
            shutil.rmtree(older, ignore_errors=True)
        BUILDS.mkdir(parents=True, exist_ok=True)
        shutil.move(unpacked, built)
    return built


def environment() -> Mapping[str, str]:
    """Return the variables, none where there is no compiler. Raises: ReleaseError."""
    if not has_compiler():
        sys.stderr.write("no C compiler for this Python: the segmenter runs as it is\n")
        return {}
    # without the first, Python finds the sources in the directory where it is started
    return {"PYTHONSAFEPATH": "1", "PYTHONPATH": f"{build()}{os.pathsep}{ROOT}"}


if __name__ == "__main__":
    sys.stdout.write(" ".join(f"{name}={value}" for name, value in environment().items()) + "\n")
