"""Afterword's own summarizer; its LLM answers at once, from inside the process."""

import asyncio
from typing import Any

from afterword.streams import logs
from afterword.streams.settings import Logs, load_settings
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer_app import run_summarizer
from tests.doubles.provider import ScriptedProvider


def scripted(*_: Any) -> Summarizer:
    """Stand in for prompts, HTTP, cached answers and the quality check: all that belongs to an LLM."""
    return Summarizer(ScriptedProvider())


def main() -> None:
    logs.configure(Logs())
    asyncio.run(run_summarizer(load_settings(), scripted))


if __name__ == "__main__":
    main()
