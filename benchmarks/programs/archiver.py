"""Afterword's own archiver, as `afterword worker archiver` runs it."""

import asyncio

from afterword.consumers.archiver import run_archiver
from afterword.streams import logs
from afterword.streams.settings import Logs, load_settings


def main() -> None:
    logs.configure(Logs())
    asyncio.run(run_archiver(load_settings()))


if __name__ == "__main__":
    main()
