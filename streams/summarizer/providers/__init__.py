"""Who writes the summaries: an LLM over HTTP, or the extractive method that needs none."""

from streams.summarizer.providers.base import Provider, Summary, SummaryRequest

__all__ = ["Provider", "Summary", "SummaryRequest"]
