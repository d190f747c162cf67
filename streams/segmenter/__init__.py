"""`messages` → `episode.closed`: when an episode is over, and what is in it."""

from afterword.streams.segmenter.bodies import Body, decode_body
from afterword.streams.segmenter.keys import Key, parse_key
from afterword.streams.segmenter.outcome import Outcome, Outgoing
from afterword.streams.segmenter.processor import Segmenter
from afterword.streams.segmenter.rows import Rows
from afterword.streams.segmenter.state import deadline_of

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
