"""Afterword's own segmenter: exactly once, on the engine."""

import asyncio

from afterword.streams import logs
from afterword.streams.app import run_segmenter
from afterword.streams.settings import Logs, load_settings
from benchmarks.programs.configuration import from_environment


def main() -> None:
    bench = from_environment()
    settings = load_settings(
        state_dir=bench.state,
        kafka={
            "bootstrap_servers": bench.bootstrap,
            "messages_topic": bench.messages,
            "episodes_topic": bench.episodes,
            "segmenter_id": bench.group,
        },
    )
    logs.configure(Logs())
    asyncio.run(run_segmenter(settings))


if __name__ == "__main__":
    main()
