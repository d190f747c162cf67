"""Afterword's own summarizer; its LLM answers at once, from inside the process."""

import asyncio
from typing import Any

from afterword.streams import logs
from afterword.streams.settings import Logs, load_settings
from afterword.streams.summarizer.providers import ExtractiveProvider, WithFallback
from afterword.streams.summarizer.providers.scripted import ScriptedProvider
from afterword.streams.summarizer_app import run_summarizer


def scripted(*_: Any) -> WithFallback:
    """In the place of prompts, HTTP, kept answers and the quality check: what belongs to an LLM."""
    return WithFallback(ScriptedProvider(), ExtractiveProvider())


def main() -> None:
    logs.configure(Logs())
    asyncio.run(run_summarizer(load_settings(), scripted))


if __name__ == "__main__":
    main()
