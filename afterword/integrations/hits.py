"""Hits of a search as a text for a model."""

from afterword.recalling.matches import NOTHING_KNOWN, hits_as_text

__all__ = ["NOTHING_KNOWN", "hits_as_text"]
