"""Fixtures of the commands and the page."""

from tests.openai_server import llm_server

__all__ = ["llm_server"]
