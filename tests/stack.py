"""The servers that integration tests run against: embedded, or the official images through Testcontainers."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

from afterword.embedded import EmbeddedStack
from afterword.embedded.java import Jar, locked_jars, parse_lock

VARIABLE = "AFTERWORD_TEST_STACK"
EMBEDDED, CONTAINERS = "embedded", "containers"
KAFKA_VARIABLE = "AFTERWORD_TEST_KAFKA"
TRANSACTION_VARIABLE = "AFTERWORD_TEST_TRANSACTION_VERSION"
KAFKA_LOCKS = Path(__file__).parent / "data" / "kafka"


def chosen_jars() -> list[Jar]:
    """Select the jars of the embedded servers: those of `jars.lock`, with the Kafka that the environment asks for."""
    jars = locked_jars()
    if version := os.environ.get(KAFKA_VARIABLE):
        [shipped] = [jar.version for jar in jars if jar.artifact == "kafka_2.13"]
        if version != shipped:
            broker = parse_lock((KAFKA_LOCKS / f"{version}.lock").read_text())
            others = [jar for jar in jars if jar.used_by != "kafka"]
            return [*(jar._replace(used_by=jar.used_by.removeprefix("kafka,")) for jar in others), *broker]
    return jars


def chosen_format() -> list[str]:
    """Return the storage tool's arguments for the transaction version that the environment asks for."""
    version = os.environ.get(TRANSACTION_VARIABLE)
    return ["--feature", f"transaction.version={version}"] if version else []


class Stack(Protocol):
    """Servers that tests may rely on, in any kind of stack. A test that kills a server starts an EmbeddedStack."""

    @property
    def bootstrap_servers(self) -> str: ...

    def environment(self) -> dict[str, str]:
        """Return variables that point a worker at this stack."""
        ...


@asynccontextmanager
async def running_stack(directory: Path) -> AsyncIterator[Stack]:
    """Run the stack that the environment asks for; skip the test if that is impossible."""
    match os.environ.get(VARIABLE, EMBEDDED):
        case "embedded":
            async with EmbeddedStack(directory, jars=chosen_jars(), format_arguments=chosen_format()) as embedded:
                yield embedded
        case "containers":
            from tests.containers import container_stack  # the engine's client is imported only where it is wanted

            async with container_stack(directory) as containers:
                yield containers
        case other:
            raise ValueError(f"{VARIABLE}={other}: {EMBEDDED} or {CONTAINERS}")
