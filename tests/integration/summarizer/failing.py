"""Runs a summarizer that fails on some conversations, as if it had a bug."""

import asyncio
from functools import partial
from typing import Any

from afterword.streams import logs
from afterword.streams.app import run_worker
from afterword.streams.settings import Logs, load_settings
from afterword.streams.summarizer.agent import start
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest
from tests.doubles.provider import ScriptedProvider

FAILS = "fails"
"""Prefix of the ids of those conversations."""


class Failing(ScriptedProvider):
    async def summarize(self, request: SummaryRequest) -> Summary:
        if request.episode.conversation_id.startswith(FAILS):
            raise KeyError(request.episode.messages[0].content)
        return await super().summarize(request)


def failing(*_: Any) -> Summarizer:
    return Summarizer(Failing())


if __name__ == "__main__":
    logs.configure(Logs(format="json"))
    asyncio.run(run_worker("summarizer", load_settings(), partial(start, make=failing)))
