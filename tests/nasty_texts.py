"""Texts that nobody writes but anybody can send: long runs, costly for patterns, splitters and normalization."""

RUNS = (
    *(" ", "\t", "\n", " \n", "\r\n", "\u00a0", "\u3000", "\x00", "\x1b["),
    *("\u0301", "\u0301\u0323", "a\u0301\u0323", "\u0f73", "ﷺ", "ﷺ ", "가", "ᄀ", "\u202e\u202d", "א ", "\ud800"),
    *("漢", "漢。", "。」", "👩\u200d👩\u200d👧", "ab", "ab ", "Bob ", "a1", "a-", "a.a", "A.", "'a", "’a"),
    *("J. ", "- J. ", "a", "A"),
    *("one ", "twenty one ", "1", "1 ", "1.", "1. ", "1,", "1/", "111 ", "$1 ", "may ", "1 may "),
    *("ı", "İ", "ſ", "\u212a", "12 aprıl ", "maı 5 ", "AUGUſT 3 ", "5 mıo ", "3 dollarſ ", "tıtle: "),
    *("*", "**", "# ", "_", "-", "–", "=", "~", "&", "|", ":", ",", ";", ". ", ".", "!", '?" ', '"', "'"),
    *("(", "[", "([{", ")", "\\", '{"a":', "[[", "{}", "a@", "a@a.", "www.", "http://", "http://a/"),
    *("<", "<|", "<think>", "<|im_start|>", "<|im_start|>user ", "[INST]", "[|", "<tool_call>"),
    *("summary ", "title:", "sure ", "ok", "Here is :", "sorry ", "i'm ", "model "),
)  # fmt: skip

TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<s>", "</s>", "[AVAILABLE_TOOLS]", "[/TOOL_RESULTS]"),
    *(
        "[|system|]",
        "[|endofturn|]",
        "[THINK]",
        "[/THINK]",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "<tools>",
    ),
    *("<start_of_image>", "[gMASK]", "<sop>", "<arg_key>", "</arg_value>", "]~b]", "]~!b[", "[e~[", "<seed:bos>"),
    *("<minimax:tool_call>", "</function_call>"),
    *("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<｜begin▁of▁sentence｜>", "<think>", "</think>"),
]
"""Marks between turns, which a model must not read in a text."""


def run(unit: str, characters: int) -> str:
    """Repeat a unit to a length."""
    return (unit * (characters // len(unit) + 1))[:characters]


def mixed(characters: int) -> str:
    """Return all runs, one after the other, each of the same length."""
    return "".join(run(unit, characters // len(RUNS)) for unit in RUNS)


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
