"""Repairs JSON with careless Unicode: a byte order mark, or half of a surrogate pair."""

import re

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"\\u(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
_ENCODED = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A surrogate encoded as if it were a UTF-8 character."""
MOST_MENDED = 10_000
"""Data with this many defects is left alone: they are not an accident, and repairing them would take time."""
NEVER = b"\xff"
r"""A byte that never occurs in UTF-8. It stands in for an escaped backslash, after which `\\ud800` is plain text."""


def mended(data: bytes) -> bytes:
    """Drop a byte order mark and replace each lone surrogate, as left by a cut inside an emoji, with U+FFFD.

    Returns equal bytes if there is nothing to repair. Runs in linear time.
    """
    found = data.removeprefix(BYTE_ORDER_MARK)
    if NEVER in found:
        return data
    found, encoded = _ENCODED.subn("\ufffd".encode(), found, MOST_MENDED)
    found, lone = _LONE.subn(rb"\\ufffd", found.replace(rb"\\", NEVER), MOST_MENDED)
    return found.replace(NEVER, rb"\\") if max(encoded, lone) < MOST_MENDED else data
