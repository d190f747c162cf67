"""Write and print wheels.txt, the Pythons and machines that the locks' pins have wheels for: python -m tools.wheels

It asks the package index. `tools.locks` compares the file with the locks, without a network.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "wheels.txt"
LOCKS = ("requirements.lock", "requirements-image.lock", "requirements-demo.lock")
MACHINES = {"x86-64": "x86_64", "arm64": "aarch64"}
GLIBC = 35
"""The newest minor version of glibc that a wheel may need: Ubuntu 22.04 has 2.35, Debian 12 has 2.36."""
OLD_NAMES = {"manylinux1": 5, "manylinux2010": 12, "manylinux2014": 17}
NONE = "  – "
BUILT = {
    "faust-streaming": "its source distribution installs as pure Python where there is no compiler",
}
"""Packages that pip builds where they have no wheel."""


def supported_pythons() -> list[str]:
    """Return the versions in the classifiers, such as 3.11."""
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    return [one.rpartition(" ")[2] for one in classifiers if one.startswith("Programming Language :: Python :: 3.")]


def tags_of(python: str, machine: str) -> set[Tag]:
    """Return the tags of the wheels that this CPython installs on Linux with glibc."""
    minor = int(python.rpartition(".")[2])
    platforms = [f"manylinux_2_{glibc}_{machine}" for glibc in range(GLIBC, 4, -1)]
    platforms += [f"{name}_{machine}" for name in OLD_NAMES]
    of_cpython = cpython_tags((3, minor), abis=[f"cp3{minor}"], platforms=platforms)
    return {*of_cpython, *compatible_tags((3, minor), f"cp3{minor}", platforms)}


def has_wheel(package: Mapping[str, Any], python: str, machine: str) -> bool:
    """Return whether a package of a `pylock.toml` has a wheel for this platform, or is not needed there."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine}
    on_linux = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"}
    if "marker" in package and not Marker(package["marker"]).evaluate({**environment, **on_linux}):
        return True
    tags = tags_of(python, machine)
    names = [wheel["url"].rpartition("/")[2] for wheel in package.get("wheels", [])]
    return any(not tags.isdisjoint(parse_wheel_filename(name)[3]) for name in names)


def resolved(lock: str) -> list[dict[str, Any]]:
    """Ask the package index for the files of each pin."""
    path = os.pathsep.join([f"{ROOT}/.venv/bin", f"{ROOT}/build/uv/bin", os.environ["PATH"]])
    uv = shutil.which("uv", path=path) or "uv"
    options = ["--universal", "--no-deps", "--format", "pylock.toml", "--quiet"]
    done = subprocess.run([uv, "pip", "compile", *options, lock], cwd=ROOT, check=True, capture_output=True, text=True)
    packages: list[dict[str, Any]] = tomllib.loads(done.stdout)["packages"]
    return packages


def rows() -> Iterator[str]:
    """Yield a row for each pin, with the versions of Python that have a wheel of it on each machine."""
    packages = {f"{one['name']}=={one['version']}": one for lock in LOCKS for one in resolved(lock)}
    for pin, package in sorted(packages.items()):
        cells = [pin.ljust(42)]
        for name, machine in MACHINES.items():
            marks = [python if has_wheel(package, python, machine) else NONE for python in supported_pythons()]
            cells.append(f"{name}: {' '.join(marks)}")
        yield "  ".join(cells)


def problems(table: str, pins: Iterable[str]) -> Iterator[str]:
    """Yield each pin that the table lacks, and each row that lacks a wheel and whose package is not built."""
    checked = {row.split()[0]: row for row in table.splitlines()}
    for pin in pins:
        if pin not in checked:
            yield f"{pin}: wheels.txt does not have it"
        elif NONE in checked[pin] and pin.partition("==")[0] not in BUILT:
            yield f"no wheel: {checked[pin]}"


if __name__ == "__main__":
    TABLE.write_text("".join(f"{row}\n" for row in rows()))
    sys.stdout.write(TABLE.read_text())
