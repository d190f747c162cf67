"""Run Kafka with its environment as configuration, as the official image does: KAFKA_LOG_DIRS becomes the property
log.dirs.
"""

import os
import subprocess
from pathlib import Path

JAVA = ("/opt/java/bin/java", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", "/opt/kafka/*")
PROPERTIES = Path("/opt/server.properties")
CLUSTER = "c3RhbmQtaW4ta2Fma2EtMQ"
PREFIX = "KAFKA_"

given = {name.removeprefix(PREFIX): value for name, value in os.environ.items() if name.startswith(PREFIX)}
PROPERTIES.write_text("".join(f"{name.lower().replace('_', '.')}={value}\n" for name, value in given.items()))
STORAGE = ("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(PROPERTIES), "--ignore-formatted")
subprocess.run([*JAVA, *STORAGE], check=True)
os.execv(JAVA[0], [*JAVA, "kafka.Kafka", str(PROPERTIES)])
