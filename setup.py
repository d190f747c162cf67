"""Write the revision into a distribution. Everything else is in pyproject.toml."""

import os
import subprocess
from pathlib import Path
from typing import Any

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
FILE = Path("afterword", "REVISION")


def revision() -> str:
    """Return the revision of the source distribution, of AFTERWORD_REVISION or of the checkout, else `unknown`."""
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


class BuildPy(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            (Path(self.build_lib) / FILE).write_text(revision() + "\n")


class Sdist(sdist):
    def make_release_tree(self, base_dir: str, files: list[Any]) -> None:
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / FILE).write_text(revision() + "\n")


setup(cmdclass={"build_py": BuildPy, "sdist": Sdist})
