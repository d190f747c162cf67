"""Stores of the programs that write to MongoDB and Qdrant, through their environment, all by the same names."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from motor.motor_asyncio import AsyncIOMotorClient


@dataclass(frozen=True)
class Stores:
    bootstrap: str
    group: str
    source: str
    summaries: str
    mongo_uri: str
    database: str
    qdrant: Path


def from_environment() -> Stores:
    """Read our own workers' variables: a program of ours is given nothing else."""
    env = os.environ
    return Stores(
        bootstrap=env["AFTERWORD_KAFKA__BOOTSTRAP_SERVERS"],
        group=env["BENCH_GROUP"],
        source=env["BENCH_SOURCE"],
        summaries=env["AFTERWORD_KAFKA__SUMMARIES_TOPIC"],
        mongo_uri=env["AFTERWORD_MONGO__URI"],
        database=env["AFTERWORD_MONGO__DATABASE"],
        qdrant=Path(env["AFTERWORD_QDRANT__PATH"]),
    )


def database(stores: Stores) -> Any:
    """Database with the same promise of every write as ours: on the disk of most servers."""
    return AsyncIOMotorClient(stores.mongo_uri, tz_aware=True, w="majority", journal=True)[stores.database]
