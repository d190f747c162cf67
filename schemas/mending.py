"""JSON as programs write it that are careless about Unicode: with a byte order mark, or with half of a character."""

import re

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"\\u(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
_ENCODED = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]")
"""A surrogate in what is not quite UTF-8."""
MOST_MENDED = 10_000
"""So many are no accident, and would take their time: data with more is left as it is."""
NEVER = b"\xff"
"""In no UTF-8; it stands for an escaped backslash, after which a surrogate is only a text about one."""


def mended(data: bytes) -> bytes:
    """Leave a byte order mark out, and write U+FFFD for each lone surrogate, as of a text that was cut inside an emoji.

    Returns equal bytes if there is nothing to mend. Linear in the data, and fast.
    """
    found = data.removeprefix(BYTE_ORDER_MARK)
    if NEVER in found:
        return data
    found, encoded = _ENCODED.subn("\ufffd".encode(), found, MOST_MENDED)
    found, lone = _LONE.subn(rb"\\ufffd", found.replace(rb"\\", NEVER), MOST_MENDED)
    return found.replace(NEVER, rb"\\") if max(encoded, lone) < MOST_MENDED else data
