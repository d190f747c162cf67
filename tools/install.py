"""Install the packages of a lock file with pip and say how far it is, without any package: INTERPRETER LOCK."""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

STEP = re.compile(r"(?:Collecting|Requirement already satisfied:) (\S+)")


def progress(lines: Iterable[str], packages: int) -> Iterable[str]:
    """Turn what pip says into what is shown."""
    found = 0
    for line in lines:
        if step := STEP.match(line):
            found += 1
            yield f"fetching {found} of {packages} packages: {step[1]}"
        elif line.startswith("Installing collected packages"):
            yield f"installing {packages} packages"


def main(interpreter: str, lock: str) -> int:
    packages = sum("==" in line and line[0].isalpha() for line in Path(lock).read_text().splitlines() if line)
    sys.stdout.write(f"Installing {packages} packages of {lock}, once; on a fast line in about a minute.\n")
    sys.stdout.flush()
    command = [interpreter, "-m", "pip", "install", "--progress-bar=off", "--require-hashes", "-r", lock]
    said = []

    def each(lines: Iterable[str]) -> Iterable[str]:
        for line in lines:
            said.append(line)
            yield line

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        for text in progress(each(pip.stdout or ()), packages):
            if sys.stdout.isatty():
                sys.stdout.write(f"\r\x1b[K{text[:78]}")
                sys.stdout.flush()
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")
    if pip.returncode:
        sys.stdout.write("".join(said))
    return pip.returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
