"""Summaries made of the conversation's own sentences: no network, no model, deterministic."""

from afterword.streams.summarizer.extractive.condensing import carry_forward, condense
from afterword.streams.summarizer.extractive.summary import ExtractiveTexts, summarize

__all__ = ["ExtractiveTexts", "carry_forward", "condense", "summarize"]
