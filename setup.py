"""Write the revision into a distribution, and compile the segmenter where asked; the rest is in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
FILE = Path("afterword", "REVISION")
SEGMENTER = Path("afterword", "streams", "segmenter")
COMPILED = ["arrival", "assembly", "conversation", "episodes", "overrides", "processor", "rules", "shifts", "state"]
"""Modules that every message runs through; mypyc makes C of them. The sources stay beside what is made of them."""


def revision() -> str:
    """Return that of the source distribution, of AFTERWORD_REVISION or of the checkout, else `unknown`."""
    if (HERE / FILE).is_file():
        return (HERE / FILE).read_text().strip()
    if found := os.environ.get("AFTERWORD_REVISION"):
        return found
    if not (HERE / ".git").exists():  # it might be below another repository
        return "unknown"
    try:
        return subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=HERE, text=True).strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def extensions() -> list[Extension]:
    """Return those that AFTERWORD_COMPILE=1 asks for: a wheel without any is the same for all platforms."""
    if os.environ.get("AFTERWORD_COMPILE") != "1":
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit("AFTERWORD_COMPILE=1 needs mypy in the environment that builds: pip install mypy")
    group = ".".join((*SEGMENTER.parts, "compiled"))  # the library that all of them share
    paths = [str(SEGMENTER / f"{name}.py") for name in COMPILED]
    found: list[Extension] = mypycify(paths, opt_level="2", debug_level="0", group_name=group)
    found.append(Extension(f"{'.'.join(SEGMENTER.parts)}._words", [str(SEGMENTER / "_words.c")]))
    for extension in found:
        extension.extra_compile_args.append("-Wno-error")  # mypyc asks for errors, whatever compilers will warn of next
    return found


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            (Path(self.build_lib) / FILE).write_text(revision() + "\n")


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[Any]) -> None:
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / FILE).write_text(revision() + "\n")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist}, ext_modules=extensions())
