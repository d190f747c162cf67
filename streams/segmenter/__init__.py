"""`messages` → `episode.closed`: when an episode is over, and what is in it."""

from streams.segmenter.bodies import Body, decode_body
from streams.segmenter.keys import Key, parse_key
from streams.segmenter.outcome import Outcome, Outgoing, Record
from streams.segmenter.processor import Segmenter
from streams.segmenter.rows import Rows
from streams.segmenter.state import deadline_of

__all__ = [
    "Body",
    "Key",
    "Outcome",
    "Outgoing",
    "Record",
    "Rows",
    "Segmenter",
    "deadline_of",
    "decode_body",
    "parse_key",
]
