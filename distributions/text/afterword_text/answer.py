"""Reads an LLM's answer: texts that can be stored, or an error that says what was wrong with it.

Models think aloud, wrap their answers, and write almost-JSON, each in its own way. So the rules are general: a block
before the answer is a thought, whatever its name, and a JSON object is recognized by the requested fields.
"""

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

from afterword_text.content import is_too_deep, walk
from afterword_text.extractive import condense
from afterword_text.language import pattern
from afterword_text.messages import FactKind
from afterword_text.sentences import cut_at_sentence, cut_at_word, first_sentences
from afterword_text.texts import FACTS, FIELDS, MAX_SUMMARY_LENGTH, SHORT_CHARACTERS, TITLE_CHARACTERS, Texts
from afterword_text.visible import strip_control_tokens, with_named_tokens

MOST_FACTS = 12
STATEMENT_CHARACTERS = 200
"""A longer statement is left out."""
NAME_CHARACTERS = 60
"""Longest name of an attribute or of a person."""
KINDS = get_args(FactKind)

_THOUGHT = r"[^<>\[\]◁▷|｜\s]{0,40}(?:think|thought|reason|reflect|reflex|analy|scratch|monolog)[^<>\[\]◁▷|｜\s]{0,40}"
_BLOCK = re.compile(
    r"\s*(?P<open>[<\[◁«‹⟨〈【][|｜]?)(?P<begin>(?:start|begin)_(?:of_)?)?(?P<name>[^\W\d_][^<>\[\]◁▷|｜\s/]{0,60}?)"
    r"(?:[\s=][^<>\[\]]{0,200})?(?P<close>[|｜]?[>\]▷»›⟩〉】])",
    re.IGNORECASE,
)
"""Matches `<think>`, `[THINK]`, `◁think▷`, `<|START_THINKING|>`, `<|begin_of_thought|>` and the like, with any name."""
_MARKUP = re.compile(r"(?:a|b|blockquote|code|del|div|em|h\d|i|li|mark|ol|p|pre|q|s|small|span|strong|su[bp]|u|ul)")
"""HTML elements that format text."""
_IS_THOUGHT = re.compile(_THOUGHT, re.IGNORECASE)
_IS_ANSWER = re.compile(r".*(?:answer|final|output|response|result|solution|summary|text|title)", re.IGNORECASE)
_END_OF_THOUGHT = re.compile(
    rf"\A(?s:.*)(?:\A|[\n.!?…。])[ \t]*(?:[<\[◁]/|<[|｜](?:/|end_(?:of_)?))(?:{_THOUGHT})[|｜]?[>\]▷]", re.IGNORECASE
)
"""Ends a thought whose beginning the chat template wrote, as with DeepSeek R1. It must be at the end of a sentence,
because a summary may mention the tag."""
_CHANNEL = re.compile(r"\A(?s:.*)(?:<[|｜]message[|｜]>|assistantfinal)")
"""Everything before the last channel of the harmony format, even if the server removed its tokens."""
_LABELLED_THOUGHT = re.compile(
    r"\A[\W_]*(?:(?:here is|let|my|the) ){0,2}(?:thinking|thoughts?|reasoning|analysis)(?: process)?[^\w\n]{0,4}\n"
    r"(?s:.*)\n(?:[^\w\n]|_){0,9}(?:(?:begin|here is|here's|my|the|final) ){0,3}(?:answer|output|response|summary)"
    r"[^\w\n:]{0,4}[:\]\n][*_]*",
    re.IGNORECASE,
)
"""A thought under a heading, and the label of the answer after it: `### Thinking`, `[BEGIN FINAL RESPONSE]`."""
_TOKEN = re.compile(r"<(?:[|｜][^<>|｜\s]{1,64}[|｜]?|[^<>|｜\s]{1,64}[|｜]|(?:unused|ctrl)\d+)>")
"""A token that structures a chat: `<|im_end|>`, `<channel|>`, `<unused94>`."""
_LAST_TOKEN = re.compile(rf"(?s).*{_TOKEN.pattern}(?=\s*+[^<\s])")
_FENCE = re.compile(
    r"\s*(?P<fence>`{3,}+|~{3,}+|'{3}|\"{3})[^\n]*\n(?P<inside>.*?)(?:\n[ \t]*+(?P=fence)|\Z)", re.DOTALL
)
MOST_WRAPPINGS = 6
MOST_OBJECTS = 100
"""Maximum number of JSON objects that are examined, from the end of an answer."""
_REFUSAL = re.compile(rf"\W*+(?:{pattern('answers', 'refusals')})", re.IGNORECASE)

_OPENED_TURN = re.compile(
    r"\A\s*(?:<[|｜](?:im_start|start_header_id)[|｜]>\s*(?:assistant\b)?(?:<[|｜]end_header_id[|｜]>)?"
    r"|assistant\s*:|(?:assistant|model)\s*\n)\s*",
    re.IGNORECASE,
)
_END_OF_TURN = re.compile(r"<[|｜](?:im_end|endoftext|eot_id|end_of_text)[|｜]>")
_NEXT_TURN = re.compile(
    rf"{_END_OF_TURN.pattern}|<[|｜]end[|｜]>|{_TOKEN.pattern}(?=[^\S\n]*+(?:\n|\Z))|</s>|<end_of_turn>|<eos>"
    r"|<[|｜]im_start[|｜]>\s*(?:system|user|assistant|tool)\s*\n|\[/?INST\]"
    r"|(?<=[.!?。！？])(?=[^\S\n]*+\n)[\s#*]*+(?:User|Human|Instruction)[*\s]*+:"
    r"|(?:</(?:summary|answer|response)>|\[EOS\])\s*+\Z"
)
_LABEL = re.compile(
    r"\A[\s*_#>\"']*+(?:[^\W\d_]{1,20}[ -]){0,2}(?:summary|title|answer|output|response|tl;dr|zusammenfassung|résumé"
    r"|resumen|resumo|riassunto|samenvatting|摘要|总结|要約|요약)(?: \([^()\n]{1,40}\))?[*_\"']*\s*?"
    r"(?:[:：=]|(?<=[*_])\n|\n\n?(?=\S))[*_\s]*",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"^[ \t]*+(?:#{1,6} [^\n]{1,150}+|[*_]{2}[^\n*_]{1,150}+[*_]{2}:?|[^\n:：]{1,150}+[:：][*_]{0,2})[ \t]*+\n++",
    re.MULTILINE,
)
_RULE = re.compile(r"^[ \t]*(?:-{3,}|\*{3,}|_{3,})[ \t]*$", re.MULTILINE)
_QUOTED_LINE = re.compile(r"^>+ ?", re.MULTILINE)
_PREFACE = re.compile(
    r"\A\s*+[*_]*(?:(?:sure|certainly|of course|okay|ok|here(?:'|’)?s|here is|below is)\b[^\n:]{0,120}"
    r"(?::[*_]*\s*\n|[.!]\s*\n\s*\n)|(?:(?:sure|certainly|of course|okay|ok)[,!] )?(?:here(?:'|’)?s|here is|below is)\b"
    r"[^\n:]{0,80}\b(?:answer|response|summary|title)\b[^\n:]{0,40}:)",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"(?s)(?=.{1,200}\Z)(?:[^\"“”]|\"[^\"]*\"|“[^”]*”)*\b(?:I|(?i:you|your|let me)\b)")
"""A paragraph in which a model speaks of its answer: "(Note: I kept it short.)", "Let me know if you need more."."""
_NOTE = re.compile(
    r"(?s)(?=.{1,200}\Z)(?:\(.*\)|\[.*\]|[*_]*(?i:word|sentence|token|length)[\w ]{0,20}: ?\d+[*_]*"
    r"|Hope this helps!?)\Z"
)
"""A paragraph about the answer: "(17 words)", "Word count: 17"."""
_COMMAND = re.compile(r"(?s)\\[a-z]+\{(?P<inside>.*)\}\Z")
"""A text in a command of LaTeX, such as `\\boxed{…}`."""
_LOOSE = re.compile(r"\{\s*[\"'][a-z_ ]{1,30}[\"']\s*:")
_EMPHASIZED = re.compile(r"(?P<mark>[*_]{1,3})(?![\s*_])(?P<inside>[^*_]*[^*_\s])(?P=mark)\Z")
_BULLET = re.compile(r"^[ \t]*(?:[-–—*•+]|\d[.)])[ \t]+", re.MULTILINE)
_QUOTES = {'"': '"', "'": "'", "“": "”", "”": "”", "‘": "’", "„": "“", "«": "»", "「": "」", "`": "`"}


class AnswerUnusable(ValueError):
    """An answer has no texts that can be stored; its text says why, and never repeats the answer."""


class StatedFact(NamedTuple):
    """A fact as an LLM states it."""

    statement: str
    kind: FactKind
    attribute: str | None
    about: str
    """The person as the LLM names them: a role, or a name."""
    numbers: tuple[int, ...]
    """Numbers of the messages that say it, from 1."""


@dataclass(frozen=True)
class Answer(Texts):
    """Cleaned texts: without control tokens, with single spaces, and within the lengths of a Summary."""

    facts: tuple[StatedFact, ...] | None = None
    """None if the answer has no list of facts."""


@dataclass(frozen=True)
class Limits:
    """How long the texts may be."""

    rolling_tokens: int
    long_characters: int = MAX_SUMMARY_LENGTH

    def cut(self, field: str, text: str) -> str:
        """Cut a field's text to its limit, with `…`, and put all fields but the rolling summary on one line."""
        if field == "rolling_summary":
            return condense(text, self.rolling_tokens)  # the end has the newest facts, so it is not cut there
        single = " ".join(text.split())
        if field == "title":
            return cut_at_word(single.strip("\"'“”*# "), TITLE_CHARACTERS)
        limit = {"short_summary": SHORT_CHARACTERS, "long_summary": self.long_characters}
        return cut_at_sentence(single, limit[field])


def read_answer(text: str, limits: Limits, fields: Sequence[str] = FIELDS) -> Answer:
    """Read the JSON object with these fields, wherever it is in the text.

    Raises: AnswerUnusable with a text that may be sent to the LLM; it never repeats what the answer said.
    """
    answer = _object_in(text, fields)
    for field in fields:
        if not isinstance(answer.get(field), str):
            raise AnswerUnusable(f'"{field}" was {"not a string" if field in answer else "missing"}')
    texts = {field: checked(_without_tokens(answer[field]), f'"{field}"') for field in fields}
    return Answer(**{field: limits.cut(field, texts[field]) for field in fields}, facts=read_facts(answer.get(FACTS)))


def read_facts(found: object) -> tuple[StatedFact, ...] | None:
    """Read the list of facts; None if it is not a list. Unusable facts are left out, because they are no reason to
    reject a summary.
    """
    if not isinstance(found, list):
        return None
    stated = []
    for fact in found[: 2 * MOST_FACTS]:
        if not isinstance(fact, dict):
            continue
        statement, about = _line(fact.get("statement")), _line(fact.get("about"))
        kind: Any = fact.get("kind")
        numbers = fact.get("messages")
        is_usable = any(map(str.isalnum, statement)) and not is_refusal(statement)
        is_short = len(statement) <= STATEMENT_CHARACTERS and len(about) <= NAME_CHARACTERS
        if is_usable and is_short and kind in KINDS and isinstance(numbers, list):
            attribute = re.sub(r"\W+", "_", _line(fact.get("attribute")).casefold()).strip("_")[:NAME_CHARACTERS]
            named = attribute if attribute not in ("", "none", "null") else None
            cited = tuple(number for number in numbers if type(number) is int)
            stated.append(StatedFact(statement, kind, named, about, cited))
    return tuple(stated[:MOST_FACTS])


def _line(value: object) -> str:
    return " ".join(_without_tokens(value).split()) if isinstance(value, str) else ""


def _without_tokens(text: str) -> str:
    return strip_control_tokens(with_named_tokens(text))


def read_plain(text: str, field: str, limits: Limits, max_sentences: int | None = None) -> str:
    """Read the text of a field, without what the model says around it and the turns that it invents after it.

    Raises: AnswerUnusable with a text that may be sent to the LLM; it never repeats what the answer said.
    """
    said = _without_tokens(own_turn(with_named_tokens(without_thinking(_as_typed(text)))))
    for _ in range(MOST_WRAPPINGS):
        before, said = said, _unwrapped(said, field)
        if said == before:
            break
    said = checked(_BULLET.sub("", said).strip(), "it")
    if field == "title":
        said = checked(next(line for line in said.splitlines() if line.strip()), "it").rstrip(" .。")
    return limits.cut(field, first_sentences(said, max_sentences) if max_sentences else said)


def _unwrapped(text: str, field: str) -> str:
    """Remove one label, preface, fence, pair of tags, layer of JSON, or part that a horizontal rule sets apart."""
    for around in (_PREFACE, _LABEL):
        text = around.sub("", text, count=1)
    text = text.strip()
    if text.startswith(">"):
        text = _QUOTED_LINE.sub("", text)
    heading = _HEADING.match(text)
    if heading and not _BULLET.match(text, heading.end()) and not _HEADING.search(text, heading.end()):
        text = text[heading.end() :].strip()
    longest = max(_RULE.split(text), key=len)
    if 2 * len(longest) > len(text):
        text = longest.strip()
    return _inside(_without_asides(text), field)


def _inside(text: str, field: str) -> str:
    """Remove the marks around a whole text: emphasis, a fence, quotation marks, JSON or tags."""
    for around in (_EMPHASIZED, _COMMAND, _FENCE):
        if match := around.match(text):
            return match["inside"]
    if text[:1] + text[-1:] in ('""', "{}", "[]"):
        texts = [(path[-1:], value) for path, value in walk(_decoded(text)) if isinstance(value, str)]
        if texts:
            return max(texts, key=lambda part: (part[0] == (field,), len(part[1])))[1]
    if _LOOSE.match(text):
        return text[1:].removesuffix("}")
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text[-1] not in text[1:-1]:
        return text[1:-1]
    return without_thinking(text)


def _without_asides(text: str) -> str:
    """Remove the first and the last paragraph if the model speaks to its reader there and other text is left."""
    parts = re.split(r"\n\s*\n", text)
    if len(parts) > 1 and _ASIDE.match(parts[0]):
        parts.pop(0)
    if len(parts) > 1 and (_ASIDE.match(parts[-1]) or _NOTE.match(parts[-1])):
        parts.pop()
    return "\n\n".join(parts)


def own_turn(text: str) -> str:
    """Cut the text where the model ended its turn, or began someone else's."""
    return next((part for part in _NEXT_TURN.split(_OPENED_TURN.sub("", text)) if part.strip()), "")


def is_refusal(text: str) -> bool:
    """Return whether the text begins the way models begin when they decline."""
    return bool(_REFUSAL.match(text))


def without_thinking(text: str) -> str:
    """Remove what a model thought aloud, and the tags around its answer. Linear in the text."""
    text = _LABELLED_THOUGHT.sub("", _CHANNEL.sub("", text, count=1), count=1)
    for _ in range(MOST_WRAPPINGS):
        begun = _BLOCK.match(text)
        if not begun:
            break
        is_thought = _IS_THOUGHT.fullmatch(begun["name"])
        ended = _end_of_block(begun).search(text, begun.end())
        if not ended:
            own, at = _END_OF_TURN.split(text, maxsplit=1)[0], begun.start("open")
            is_token = _TOKEN.match(own, at) and not _OPENED_TURN.match(own)
            if is_token and (last := _LAST_TOKEN.match(own, at + 1)):
                text = own[last.end() :]  # a thought may begin and end with tokens of different names
            else:
                text = "" if is_thought else text[begun.end() :] if _IS_ANSWER.fullmatch(begun["name"]) else text
            break
        inside, after = text[begun.end() : ended.start()], text[ended.end() :]
        if after.strip() and _MARKUP.fullmatch(begun["name"].lower()):
            break
        is_answer = _IS_ANSWER.fullmatch(begun["name"]) or not after.strip()
        text = inside if is_answer and not is_thought else after
    return _END_OF_THOUGHT.sub("", text, count=1)


def _end_of_block(begun: re.Match[str]) -> re.Pattern[str]:
    left, name, right = map(re.escape, begun.group("open", "name", "close"))
    return re.compile(f"{left}{'end_(?:of_)?' if begun['begin'] else '/'}{name}{right}", re.IGNORECASE)


def checked(text: str, name: str) -> str:
    """Return the text if it says something and does not decline. Raises: AnswerUnusable, which names the text."""
    if not any(c.isalnum() for c in text):
        raise AnswerUnusable(f"{name} was empty")
    if is_refusal(text):
        raise AnswerUnusable(f"{name} was a refusal")
    return text


def _as_typed(text: str) -> str:
    """Undo the escapes of a text that was escaped as a whole, for HTML or for JSON."""
    if re.match(r"\s*&lt;", text) or ("&quot;" in text and '"' not in text):
        text = html.unescape(text)
    text = re.sub(r"(?<!\\)\\_", "_", text)  # Markdown escapes underscores, JSON does not
    return text.replace('\\"', '"') if re.search(r'\{\s*\\"', text) and not re.search(r'\{\s*"', text) else text


def _decoded(text: str) -> Any:
    """Return the value of a text that is JSON; None for any other."""
    try:
        value = _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return None if is_too_deep(value) else value


_DECODER = json.JSONDecoder(strict=False)
"""Accepts line breaks inside strings."""
_ESCAPED = re.compile(r'\\.|"', re.DOTALL)
_LIST_OF_FACTS = re.compile(rf"""(?<=["'”])\s*+,?\s*+["'“]?{FACTS}["'”]?\s*+:\s*+\[.*""", re.DOTALL)
"""The end of an answer, which may have been cut off."""
_AFTER_TEXT = "\"'”*_,}| \t\r\n"
_CLOSING_TAG = re.compile(r"(?:\]\]>)?(?:</[\w -]{1,30}>\s*){1,4}\Z")


def _object_in(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Return the last object that has all the fields. If there is none, return one from which the caller can say what
    is missing."""
    text = _as_typed(text)
    spoken = without_thinking(text)
    string = _decoded(text)  # the object may be inside a JSON string
    text = string if isinstance(string, str) else text
    texts = _LIST_OF_FACTS.sub("}", text)
    objects = [_with_known_names(each, fields) for each in _objects(text)]
    candidates = [_labelled_texts(texts, fields), _loose_object(texts, fields), *objects]
    complete = [each for each in candidates if all(isinstance(each.get(field), str) for field in fields)]
    chosen = complete or [each for each in candidates if not each.keys().isdisjoint(fields)] or objects[:1]
    if not complete and is_refusal(spoken):
        raise AnswerUnusable("it was a refusal")
    if chosen:
        return chosen[-1]
    if not spoken.strip():
        raise AnswerUnusable("it was empty")
    has_braces = 0 <= text.find("{") < text.rfind("}")
    raise AnswerUnusable("it was not valid JSON" if has_braces else "it held no JSON object")


def _with_known_names(answer: dict[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """Rename fields that are spelled in another way: `shortSummary`, `Short summary`."""
    known = {_letters(field): field for field in (*fields, FACTS)}
    return {known.get(_letters(name), name): value for name, value in answer.items()}


def _letters(name: str) -> str:
    return "".join(filter(str.isalpha, name.casefold()))


def _spellings(fields: Sequence[str]) -> str:
    return "|".join(field.replace("_", "[ _-]?") for field in fields)


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, including nested ones."""
    end = 0
    for begun in list(re.finditer(r'\{\s*+"', text))[-MOST_OBJECTS:]:
        if begun.start() < end:
            continue
        try:
            found, after = _DECODER.raw_decode(text, begun.start())
        except (ValueError, RecursionError):
            continue
        if is_too_deep(found):
            continue
        end = after
        for _, value in walk(found):
            if isinstance(value, dict):
                yield value
            elif isinstance(value, str) and value.lstrip()[:1] == "{":  # as arguments of tool calls are
                yield from _objects(value)


def _labelled_texts(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Read texts that follow their names instead of being in an object: `Title: …`, `**Title**`, `<title>…</title>`.

    Linear in the text.
    """
    label = re.compile(
        rf"""(?:^[ \t>*_#"'“|<\d.)-]{{0,12}}|<(?:[\w ]{{1,30}}=["']?)?)({_spellings(fields)})["'”*_]{{0,6}}"""
        r"""[ \t]*+(?:[:：>|=]|$)(?:[*_"'“ \t]|[|>][+-]?(?=[ \t]*+\n)|<!\[CDATA\[)*+""",
        re.I | re.M,
    )
    parts = _parts(text, label)
    texts = {name: _CLOSING_TAG.sub("", said.rstrip(_AFTER_TEXT)).rstrip(_AFTER_TEXT) for name, said in parts}
    return _with_known_names(texts, fields)


def _parts(text: str, names: re.Pattern[str]) -> list[tuple[str, str]]:
    """Return each name in a text, with what follows up to the next one."""
    matches = list(names.finditer(text))
    ends = [*(following.start() for following in matches[1:]), len(text)]
    return [(name[1], text[name.end() : end]) for name, end in zip(matches, ends, strict=False)]


def _loose_object(text: str, fields: Sequence[str]) -> dict[str, Any]:
    """Read the fields of something that is not quite JSON. Linear in the text.

    A text extends from the quotation mark after its field's name to the last one before the next field, or to the first
    one before a closing bracket. So it may contain quotation marks, be followed by comments, and lack a comma.
    """
    names = re.compile(
        rf"""(?:\A|(?<=[{{,，\s/]))["'“”«`]?({_spellings(fields)})["'”»`]?\s*+(?:[:：]|=>?)\s*+(?=["'“”«`])""", re.I
    )
    texts, parts = {}, _parts(text, names)
    for name, raw in parts:
        mark = _QUOTES[raw[0]]
        last = re.search(rf"{mark}(?=\s*+,?\s*+\}})", raw[1:]) if raw is parts[-1][1] else None
        end = last.start() + 1 if last else raw.rfind(mark)
        if end > 0:
            inside = raw[1:end]
            texts[name] = _unescaped(inside.strip(mark) if inside.startswith(mark * 2) else inside)
    return _with_known_names(texts, fields)


def _unescaped(raw: str) -> str:
    quoted = _ESCAPED.sub(lambda match: '\\"' if match[0] == '"' else match[0].replace("\\'", "'"), raw)
    try:
        return str(_DECODER.decode(f'"{quoted}"'))
    except ValueError:
        return raw
