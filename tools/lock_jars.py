"""Write the locks of jars, after changing a version below: python -m tools.lock_jars

`afterword/embedded/jars.lock` is the embedded stack's, `tests/data/mongo/jars.lock` the test server's for MongoDB.
`tests/data/debezium/jars.lock` has Kafka Connect with Debezium, and `tests/data/kafka/VERSION.lock` names the jars of
other brokers that tests run on: AFTERWORD_TEST_KAFKA=VERSION.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jgo.maven import Artifact, MavenContext
from jgo.parse import Coordinate

# Apache Kafka itself. slf4j-simple writes its log to standard error, mongo-java-server implements MongoDB's protocol on
# top of H2, and ecj is a Java compiler that needs no JDK.
KAFKA = "4.4.0"
TESTED_KAFKAS = ("3.7.2", "3.9.1", "4.1.1")
WANTED = {
    "kafka": (f"org.apache.kafka:kafka_2.13:{KAFKA}", "org.slf4j:slf4j-simple:1.7.36"),
}
MONGO = {
    "mongo": ("de.bwaldvogel:mongo-java-server-h2-backend:1.47.0", "org.slf4j:slf4j-simple:1.7.36"),
    "compiler": ("org.eclipse.jdt:ecj:3.43.0",),
}
CONNECT, DEBEZIUM = "4.3.0", "3.6.1.Final"  # this Debezium does not start on Connect 4.4.0
TABLES = {
    "debezium": (
        f"org.apache.kafka:connect-runtime:{CONNECT}",
        f"org.apache.kafka:connect-json:{CONNECT}",
        f"io.debezium:debezium-connector-postgres:{DEBEZIUM}",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
}
HEADER = "# group:artifact:version  bytes  SHA-256  used by; written by tools/lock_jars.py\n"


def main() -> None:
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as directory:
        maven = MavenContext(repo_cache=Path(directory), timeout=60)
        (root / "afterword" / "embedded" / "jars.lock").write_text(_lock(maven, WANTED))
        (root / "tests" / "data" / "mongo" / "jars.lock").write_text(_lock(maven, MONGO))
        (root / "tests" / "data" / "debezium" / "jars.lock").write_text(_lock(maven, TABLES))
        for version in TESTED_KAFKAS:
            broker = {"kafka": (f"org.apache.kafka:kafka_2.13:{version}", *WANTED["kafka"][1:])}
            (root / "tests" / "data" / "kafka" / f"{version}.lock").write_text(_lock(maven, broker))


def _lock(maven: MavenContext, wanted: Mapping[str, tuple[str, ...]]) -> str:
    users: dict[str, list[str]] = {}
    artifacts: dict[str, Artifact] = {}
    for user, coordinates in wanted.items():
        for artifact in _closure(maven, coordinates):
            name = f"{artifact.groupId}:{artifact.artifactId}:{artifact.version}"
            artifacts[name] = artifact
            users.setdefault(name, []).append(user)
    return HEADER + "".join(_line(name, artifacts[name].resolve(), users[name]) for name in sorted(artifacts))


def _closure(maven: MavenContext, coordinates: tuple[str, ...]) -> list[Artifact]:
    wanted = [maven.create_dependency(replace(Coordinate.parse(c), scope="compile")) for c in coordinates]
    direct, transitive = maven.resolver.resolve(wanted)
    return [d.artifact for d in (*direct, *transitive) if d.scope in ("compile", "runtime")]


def _line(name: str, file: Path, users: list[str]) -> str:
    data = file.read_bytes()
    return f"{name}  {len(data)}  {hashlib.sha256(data).hexdigest()}  {','.join(users)}\n"


if __name__ == "__main__":
    main()
