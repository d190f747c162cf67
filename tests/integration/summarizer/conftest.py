"""Fixtures for the summarizer against a local LLM server."""

from tests.openai_server import llm_server

__all__ = ["llm_server"]
