"""`messages` → `episode.closed`: when an episode is over, and what is in it."""

from afterword.streams.segmenter.processor import Outcome, Outgoing, Segmenter
from afterword.streams.segmenter.state import Body, Key, Rows, deadline_of, decode_body, parse_key

__all__ = [
    "Body",
    "Key",
    "Outcome",
    "Outgoing",
    "Rows",
    "Segmenter",
    "deadline_of",
    "decode_body",
    "parse_key",
]
