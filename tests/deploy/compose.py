"""docker compose, with one set of files and one project."""

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from tests.deploy.builds import Builds, Engine


@dataclass(frozen=True)
class Compose:
    program: tuple[str, ...]
    """`docker compose`, or the stand-alone program `docker-compose`."""
    environment: dict[str, str]
    files: tuple[Path, ...]
    project: str = "afterword-test"
    variables: dict[str, str] = field(default_factory=dict)
    """Values for the variables in the files."""
    env_file: Path = Path(os.devnull)
    """More variables; by default none, so that a developer's own `.env` has no effect."""

    def run(self, *arguments: str) -> str:
        """Run a command and return its output. Raises: AssertionError with its error output."""
        files = [part for file in self.files for part in ("--file", os.fspath(file))]
        options = ["--project-name", self.project, "--env-file", os.fspath(self.env_file), *files]
        command = [*self.program, *options, *arguments]
        environment = os.environ | self.environment | self.variables
        done = subprocess.run(command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-4000:]}"
        return done.stdout


def program(engine: Engine, builds: Builds, prefix: Path) -> tuple[str, ...]:
    """Return Docker's own compose, or one that is built from its Go module."""
    if has_compose(engine.client):
        return engine.client, "compose"
    builds.need("compose.sh")
    return (os.fspath(prefix / "bin" / "docker-compose"),)


def has_compose(client: str) -> bool:
    try:
        done = subprocess.run([client, "compose", "version", "--short"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return False
    return done.returncode == 0 and done.stdout.strip().removeprefix("v").startswith(("2.", "5."))
