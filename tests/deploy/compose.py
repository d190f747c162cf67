"""docker compose, with one set of files and one project."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.engine import Engine


@dataclass(frozen=True)
class Compose:
    program: tuple[str, ...]
    """`docker compose`, or the program of its own that does the same."""
    environment: dict[str, str]
    files: tuple[Path, ...]
    project: str = "afterword-test"
    variables: dict[str, str] = field(default_factory=dict)
    """Variables that the files leave open."""
    env_file: Path = Path(os.devnull)
    """More of them; by default not those of the `.env` of whoever runs the tests."""

    def run(self, *arguments: str) -> str:
        """Run a command and return its output. Raises: AssertionError with its error output."""
        files = [part for file in self.files for part in ("--file", os.fspath(file))]
        command = [
            *self.program,
            "--project-name",
            self.project,
            "--env-file",
            os.fspath(self.env_file),
            *files,
            *arguments,
        ]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=os.environ | self.environment | self.variables,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
        return done.stdout


def program(engine: Engine, script: Path, prefix: Path) -> tuple[str, ...]:
    """The engine's own, or one that is built from its Go module."""
    if engine.docker("compose", "version", "--short", check=False).removeprefix("v").startswith(("2.", "5.")):
        return engine.client, "compose"
    subprocess.run([script, prefix], check=True)
    return (os.fspath(prefix / "bin" / "docker-compose"),)
