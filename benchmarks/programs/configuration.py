"""Configuration of every program, through its environment."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Configuration:
    bootstrap: str
    group: str
    messages: str
    episodes: str
    state: Path
    partitions: int


def from_environment() -> Configuration:
    env = os.environ
    return Configuration(
        bootstrap=env["BENCH_BOOTSTRAP"],
        group=env["BENCH_GROUP"],
        messages=env["BENCH_MESSAGES"],
        episodes=env["BENCH_EPISODES"],
        state=Path(env["BENCH_STATE"]),
        partitions=int(env["BENCH_PARTITIONS"]),
    )
