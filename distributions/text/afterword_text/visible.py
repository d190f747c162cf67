"""Showing text safely: a terminal, log or prompt must neither obey it nor take it for a line of ours."""

import re

_HIDDEN = (
    "\x00-\x1f\x7f-\x9f\xad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000110bd\U000110cd"
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
"""Characters that a terminal obeys, or that reverse or hide text: Unicode's categories Cc, Cf, Cs, Zl and Zp, and its
Default_Ignorable_Code_Point."""
_HIDING = re.compile(
    rf"[{_HIDDEN}](?P<seen>(?<=[^\s{_HIDDEN}][\ufe0e\ufe0f\u200c\u200d])|(?<=[^\s{_HIDDEN}][\ufe0e\ufe0f][\u200c\u200d]))?"
)
"""A hidden character. It is `seen` if it selects an emoji's form, or is a joiner, which Persian, Hindi and emoji need,
right after a visible character. More than one of each in a row could spell out a hidden text."""
IGNORABLE = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]")
"""Code points that are not in category Cf but are invisible (Unicode's Default_Ignorable_Code_Point)."""
KEPT = "\n\t"
"""Characters that stay in a text of several lines."""
LINES = "\n\r\t\u2028\u2029"
INDENT = "    "
ELLIPSIS = "…"
"""Stands for what is left out."""
_CONTROL_TOKENS = (
    r"<[|｜][^<>|｜\s]{1,64}[|｜]>"  # ChatML, Llama 3 and 4, Phi, Command R, DeepSeek: <|im_start|>, <|eot_id|> …
    r"|</?s>|<</?SYS>>|\[/?INST\]"  # Llama 2, Mistral
    r"|\[/?(?:SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|THINK|ARGS|CALL_ID)\]"  # Mistral
    r"|<(?:start_of_turn|end_of_turn|start_of_image|end_of_image|bos|eos|pad|unk|mask)>"  # Gemma
    r"|\[[|｜][A-Za-z_]{1,32}[|｜]\]"  # EXAONE: [|system|], [|endofturn|]
    r"|</?(?:think|tools?|tool_calls?|tool_response|function_calls?)>"  # DeepSeek, Qwen, Hermes
    r"|\[gMASK\]|<[se]op>|</?arg_(?:key|value)>"  # GLM
    r"|\]~!?b[\[\]]|\[e~\[|</?minimax:tool_call>"  # MiniMax
    r"|</?seed:[a-z_]{1,32}>"  # Seed
)
_CONTROL_TOKEN = re.compile(_CONTROL_TOKENS)
"""Structures a chat for a model; inside a text, it could open a turn of its own."""

_UNSPACED = "\u3040-\u9fff\uac00-\ud7af"
_MENTION = re.compile(
    rf"(?:(?<=[^\W_] )|(?<=[^\W_] [\"'`“„«(])|(?<=[{_UNSPACED}「『“]))(?P<token>{_CONTROL_TOKENS})"
    rf"(?=[\"'`“”»」』)]{{0,2}}(?:[.,;:!?-]|\s[^\W_A-Z]|[{_UNSPACED}]))(?!\s(?:system|user|assistant|tool|model)\b)"
)
"""A control token inside a sentence, where a writer means the token itself."""


def many(count: int, singular: str, more: str) -> str:
    """Write a count with its noun in the singular or plural."""
    return f"{count:,} {singular if count == 1 else more}"


def shown(text: str) -> str:
    """Make one line of any text: line breaks, tabs, and what a terminal would obey or hide become �."""
    return _replaced(text, "")


def printable(text: str) -> str:
    """Replace characters that a terminal would obey, or that hide text, with �; line breaks and tabs stay."""
    return _replaced(text, KEPT)


def shown_lines(text: str) -> str:
    """Make a text printable and indent all lines but the first, so that none passes for a line of another source."""
    return printable(text).replace("\n", f"\n{INDENT}")


def shown_json(document: str) -> str:
    """Return JSON of the same value in which characters that a terminal would obey or hide are escaped."""
    pairs = zip(document, printable(document), strict=True)
    return "".join(c if c == seen else _escaped(c) for c, seen in pairs)


def without_hidden(text: str) -> str:
    """Remove what nobody sees, because a model would read it; all line breaks and tabs stay."""
    return _replaced(text, LINES, "")


def _replaced(text: str, kept: str, replacement: str = "\ufffd") -> str:
    return _HIDING.sub(lambda match: match[0] if match["seen"] == "" or match[0] in kept else replacement, text)


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def strip_control_tokens(text: str) -> str:
    """Replace each control token with a space, and remove what nobody sees, which could hide words or split a token.

    No control token contains a space, so the text around a removed one cannot join into another.
    """
    return _CONTROL_TOKEN.sub(" ", without_hidden(text))


def with_named_tokens(text: str) -> str:
    """Replace each control token that a sentence mentions with its name: "the <s> tag" becomes "the s tag"."""
    return _MENTION.sub(lambda match: match["token"].strip("<>[]|｜~"), text)


def without_surrogates(text: str) -> str:
    """Replace surrogate pairs with their character and lone surrogates with U+FFFD, because UTF-8 has neither."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text
