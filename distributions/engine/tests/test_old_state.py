"""Removal of local state that is too old to be used."""

import os
import time
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Any

from faust_eos.app import App
from faust_eos.batch import Batches
from faust_eos.options import Options

LONG_AGO = 1_000_000.0
"""Seconds since 1970."""


async def read(_: AsyncIterable[Any]) -> None: ...


def put_state(directory: Path, *names: str, used: float = LONG_AGO) -> None:
    for name in names:
        (directory / name).mkdir()
        for file in ("CURRENT", "LOG"):
            (directory / name / file).touch()
            os.utime(directory / name / file, (LONG_AGO, LONG_AGO))
        os.utime(directory / name / "LOG", (used, used))


async def test_only_old_state_of_the_apps_topics_is_removed(tmp_path: Path) -> None:
    app = App("shop", brokers="localhost:9092", engine=Options(), datadir=tmp_path)
    app.agent(app.topic("orders", schema=Batches()))(read)
    directory = app.conf.tabledir
    directory.mkdir(parents=True)
    put_state(directory, "orders-1", "orders-12")
    put_state(directory, "others-1", "orders")
    put_state(directory, "orders-3", used=time.time())
    (directory / "orders-4").mkdir()  # a killed process had begun to remove it
    await app.on_first_start()
    assert {path.name for path in directory.iterdir()} == {"orders-3", "orders", "others-1"}
