"""Ids that a careless program would take for code, paths or queries."""

IDS = [
    "../../../escaped",
    "/etc/escaped",
    "..",
    ".",
    "a\0b",
    '{"$gt": ""}',
    "$where",
    "$set.user_id",
    "a.b",
    "x\r\nce_type: forged",
    "x" * 256,
    "%2e%2e%2fescaped",
    "a:1",
    "a/b:1",
    "\u202eright-to-left\u200b",
    "\x1b]0;title\x07",
]
