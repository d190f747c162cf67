"""Summaries made of the conversation's own sentences: no network, no model, the same result every time."""

from streams.summarizer.extractive.rolling import carry_forward, condense
from streams.summarizer.extractive.summary import ExtractiveTexts, summarize

__all__ = ["ExtractiveTexts", "carry_forward", "condense", "summarize"]
