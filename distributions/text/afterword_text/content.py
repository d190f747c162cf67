"""Reads the text of a message's content, in the formats of model APIs, agent frameworks and exports.

OpenAI's Chat, Assistants and Responses APIs, Anthropic, Bedrock, Gemini, LangChain and the Vercel AI SDK all nest the
text differently and keep adding kinds of parts. So general rules are used: the words in a part's type, or in the name
of its field, distinguish calls, results, reasoning and media. In everything else, text is read wherever it is.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain, groupby
from typing import Any, NamedTuple

import orjson

MAX_DEPTH = 64
MOST_LEVELS = 500
ROLES = {
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "ai": "assistant",
    "model": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
}
"""Our roles, by the words of models' APIs and agent frameworks."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
TEXTS = ("content", "parts", "text", "value", "body", "message", "refusal", "transcript", "transcription")
"""Fields that contain what was said, the usual ones first."""
DESCRIBED = frozenset({*TEXTS, "alt", "alt_text", "caption", "captions", "description", "extracted_text"})
"""Fields of media that say what is seen or heard in them."""
ANSWERS = ("content", "output", "outputs", "result", "results", "response", "text", "value", "error")
"""Fields that contain a tool's answer."""
NAMES = ("name", "toolName", "tool_name")
"""Fields that name the called tool."""
REASONING = frozenset({"reasoning", "think", "thinking", "thought", "thoughts"})
SILENT = frozenset({"token_budget", "flag", "agent_update"})
"""Types of parts in which nobody says anything."""
RESULTS = frozenset({"output", "outputs", "response", "result", "results", "return", "returns"})
CALLS = frozenset({"call", "calls", "invocation", "invocations", "use"})
ASKED = frozenset({"action", "args", "arguments", "input", "parameters"})
MEDIA = {
    "image": "[image]",
    "images": "[image]",
    "picture": "[image]",
    "photo": "[image]",
    "audio": "[audio]",
    "voice": "[audio]",
    "video": "[video]",
    "file": "[file]",
    "files": "[file]",
    "document": "[file]",
    "inline": "[attachment]",
    "blob": "[attachment]",
    "attachment": "[attachment]",
    "attachments": "[attachment]",
}
ABOUT = frozenset(
    {"annotations", "at", "citations", "format", "id", "ids", "kwargs", "metadata", "name", "names"}
    | {"role", "signature", "status", "time", "timestamp", "type", "uri", "url", "usage"}
)
"""Last words of fields that describe a message, or a part of it, without containing its text."""
NAME = re.compile(r"[\w@][\w./:@+?=&%#~-]*\w|\w", re.ASCII)
"""A word as in names of models, states, times and addresses, which is not prose."""
DATA = re.compile(r"data:[\w/+.-]*[;,].*|[\w+/=-]{257,}", re.ASCII | re.DOTALL)
"""Inline data and long runs in base64, which are not text."""
_THINK = r"[^\s<>\[\]◁▷/]{0,20}(?:think|thought|reason)[^\s<>\[\]◁▷/]{0,20}"
_THINK_END = rf"[<\[◁](?:/|[|｜](?:/|end_)){_THINK}[>\]▷](?![ \t]+(?-i:[a-zß-ÿ]))"
_UNSAID = re.compile(
    rf"\A(?:\s*[<\[◁]{_THINK}[>\]▷](?:.*?{_THINK_END}|[ \t]*\n.*))+"
    r"|(?:(?<=\n\n)|(?<=[.!?]\n))<think(?:ing)?>[^<]*(?:<(?!/?think)[^<]*)*</think(?:ing)?>"  # between two answers
    r"|\A(?:(?!<think)[^`]){0,200000}?^[ \t]*</think(?:ing)?>[ \t]*$"  # the model's template wrote the beginning
    r"|\A\s*:::thinking\b.*?(?:^:::[ \t]*$|\Z)"
    r"|\A\s*(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)\b.*?(?:<\|channel\|>final<\|message\|>|\Z)"
    r"|(?:^|(?<=</details>))[ \t]*<details\s"
    r"(?=[^<>]{0,200}?\btype=[\"'](?P<type>reasoning|tool_calls|code_interpreter)[\"']).*?"
    r"(?:</details>|\Z)",
    re.IGNORECASE | re.DOTALL | re.MULTILINE,
)
"""Thinking and calls inside a stored answer, as models, LibreChat until 0.7.6 and Open WebUI mark them. A sentence may
begin with the name of a mark."""
_CALLED = re.compile(r'\bname="([^"]{1,200})"')


class Kind(StrEnum):
    """The origin of a piece of a message."""

    SAID = "said"
    RESULT = "result"
    """A tool's answer, no matter whose message contains it."""
    REASONING = "reasoning"


class Piece(NamedTuple):
    """Part of a message that has one origin, with the names of the tools that it calls."""

    kind: Kind
    text: str
    tools: tuple[str, ...] = ()


class ContentUnreadable(ValueError):
    """Content whose text cannot be found. The error's message never quotes it."""


def flatten(content: Any) -> list[Piece]:
    """Flatten the content of a message: a string, parts in any known form, or an object.

    Adjacent parts of one kind are joined with line breaks. Media leave a placeholder such as `[image]`, or their
    transcript. Arguments of calls are omitted; a tool's structured answer becomes its JSON. Content without any text
    has no pieces. Raises: ContentUnreadable.
    """
    return _joined(_pieces(content, 0))


def flatten_message(message: Mapping[str, Any], is_answer: bool = False) -> list[Piece]:
    """Flatten a message, whose text may be outside its `content`: in `parts`, in its audio's transcript and so on.

    `is_answer` means that it is a tool's answer, which may be an object of any form.

    Raises: ContentUnreadable, also if there is text in an unexpected field.
    """
    if is_answer and (answer := list(_result(message.get("content"), 0))):
        return answer
    if kind := _kind_of(message):
        return _joined(_of_kind(kind, _type(message), message, 0))
    pieces: list[Piece] = []
    for name in _in_order(message):
        known = "\n".join(piece.text for piece in pieces)  # the text is often there twice, in `content` and in `parts`
        pieces += [
            piece
            for piece in _field(name, message[name], 0)
            if piece.tools or piece.kind is not Kind.SAID or not known or piece.text not in known
        ]
    if not pieces:
        # One word is a user's message; beside an assistant's empty content it is a model's name or a status.
        is_persons = ROLES.get(str(message.get("role")).lower()) == "user"
        is_said = is_persons or message.keys().isdisjoint(TEXTS)
        texts = [(path, text) for path, text in _leaves(message) if text.strip() and not _is_data(text)]
        place = next((path for path, text in texts if is_said or path[0] in TEXTS or _is_prose(text)), None)
        if place is not None:
            raise ContentUnreadable(f"its text is in {'.'.join(place)[:80]}, where it is not read")
    return _joined(pieces)


def said(role: str, pieces: Sequence[Piece], message_id: str) -> list[dict[str, Any]]:
    """Turn the pieces of a message into fields of messages. A tool's result becomes a message of its own.

    A model's reasoning and system prompts were not said by anyone, so they are archived but not summarized. A model's
    text may have its reasoning inside, in marks; what a user writes in such marks was said.
    """
    if role == "assistant":
        pieces = _joined([_without_thoughts(piece) if piece.kind is Kind.SAID else piece for piece in pieces])
    return [
        {
            "id": message_id if number == 1 else f"{message_id}.{number}",
            "role": "tool" if piece.kind is Kind.RESULT else role,
            "content": piece.text,
            "tools": piece.tools,
            "skip_summarization": role == "system" or piece.kind is Kind.REASONING,
        }
        for number, piece in enumerate(pieces, start=1)
    ]


def _without_thoughts(piece: Piece) -> Piece:
    unsaid = list(_UNSAID.finditer(piece.text))
    calls = [_CALLED.search(match[0]) for match in unsaid if match["type"] == "tool_calls"]
    tools = dict.fromkeys((*piece.tools, *(call[1] for call in calls if call)))
    said = _UNSAID.sub("", piece.text).strip() if unsaid else piece.text
    return Piece(Kind.SAID, said, tuple(tools)) if said or tools or not unsaid else Piece(Kind.REASONING, piece.text)


def _pieces(content: Any, depth: int) -> Iterator[Piece]:
    if depth > MAX_DEPTH:
        raise ContentUnreadable("its content is nested too deeply")
    if isinstance(content, str):
        if content.strip():
            yield Piece(Kind.SAID, content)
    elif isinstance(content, list):
        for part in content:
            yield from _pieces(part, depth + 1)
    elif isinstance(content, dict):
        yield from _part(content, depth)
    elif isinstance(content, int | float) and not isinstance(content, bool):
        yield Piece(Kind.SAID, str(content))


def _part(part: Mapping[str, Any], depth: int) -> Iterator[Piece]:
    if _type(part) in SILENT:
        return
    if kind := _kind_of(part):
        yield from _of_kind(kind, _type(part), part, depth)
        return
    pieces = list(_fields(part, depth))
    if not pieces:
        texts = [text for _, text in _leaves(part) if text.strip() and not _is_data(text)]
        pieces = [Piece(Kind.SAID, text) for text in texts] if any(map(_is_prose, texts)) else []
    filled = [value for value in part.values() if value not in (None, "", [], {})]
    if not pieces and len(filled) > 1 and set(name_words(_type(part))) - {"text", "message", "input", "output"}:
        pieces = [Piece(Kind.SAID, "[attachment]")]
    yield from pieces


def _kind_of(part: Mapping[str, Any]) -> str | None:
    if part.get("thought") is True:  # Gemini's form
        return "reasoning"
    words = name_words(_type(part))
    is_tool = "tool" in words and words[-1] not in RESULTS and (len(words) > 1 or not part.keys() & TEXTS)
    return "call" if is_tool else _kind(words)


def _fields(part: Mapping[str, Any], depth: int) -> Iterator[Piece]:
    for name in _in_order(part):
        yield from _field(name, part[name], depth)


def _in_order(part: Mapping[str, Any]) -> list[str]:
    return sorted(part, key=lambda name: TEXTS.index(name) if name in TEXTS else len(TEXTS))


def _field(name: str, value: Any, depth: int) -> Iterator[Piece]:
    """Yield the pieces in a field of a message, or of a part whose kind is a field, such as `toolResult`."""
    if name in TEXTS:
        yield from _pieces(value, depth + 1)
    elif name == "additional_kwargs" and isinstance(value, dict):  # LangChain's form
        yield from _fields(value, depth + 1)
    elif isinstance(value, dict) or (isinstance(value, list | str) and not _is_about(name)):
        kind = _kind(name_words(name)) if value else None
        for item in (value if isinstance(value, list) else [value]) if kind else ():
            yield from _of_kind(kind or "", name, item, depth + 1)


def _kind(words: Sequence[str]) -> str | None:
    """Return the kind that the words of a type or field indicate; None for text, or if they say nothing."""
    if REASONING.intersection(words):
        return "reasoning"
    if not words or words[-1] == "text":
        return None
    if words[-1] in RESULTS and len(words) > 1:
        return "result"
    if words[-1] in CALLS:
        return "call"
    return "media" if any(word in MEDIA for word in words) else None


def _of_kind(kind: str, name: str, value: Any, depth: int) -> Iterator[Piece]:
    if depth > MAX_DEPTH:
        raise ContentUnreadable("its content is nested too deeply")
    part = value if isinstance(value, dict) else {}
    if kind == "reasoning":
        text = value if isinstance(value, str) else "\n".join(text for _, text in _leaves(value))
        yield from [Piece(Kind.REASONING, text)] if text.strip() else []
    elif kind == "result":
        yield from _result(_answer(part) if part else value, depth)
    elif kind == "call":
        yield Piece(Kind.SAID, "", (_called(name, part),))
        for path, answer in walk(part):
            is_asked = any(ASKED.intersection(name_words(at)) for at in path)
            if path and path[-1] in RESULTS and answer and not is_asked:
                yield from _result(answer, depth)
                break
    else:
        words = name_words(name)
        said = [text for path, text in _leaves(value) if path and {*path} & DESCRIBED and text.strip()]
        yield Piece(Kind.SAID, said[0] if said else next(MEDIA[word] for word in words if word in MEDIA))


def _called(name: str, part: Mapping[str, Any]) -> str:
    """Return the name of the called tool, or what the type says, as in `web_search_call`."""
    names = [(len(path), value) for path, value in walk(part) if path and path[-1] in NAMES and isinstance(value, str)]
    if names:
        return min(names, key=lambda named: named[0])[1]
    words = [word for word in name_words(name) if word != "tool" and word not in CALLS]
    return "_".join(words) or "tool"


def _answer(part: Mapping[str, Any]) -> Any:
    """Return a tool's answer, without the arguments of its call."""
    for name in ANSWERS:
        if part.get(name) not in (None, "", [], {}):
            return part[name]
    for name, value in part.items():
        if isinstance(value, dict) and _kind(name_words(name)) == "result":  # {"toolResult": {"content": …}}
            return _answer(value)
    filled = {name: value for name, value in part.items() if value not in (None, "", [], {}) and value is not False}
    return {name: value for name, value in filled.items() if not _is_about(name)}


def _result(answer: Any, depth: int) -> Iterator[Piece]:
    text = _plain(answer, depth)
    if text.strip():
        yield Piece(Kind.RESULT, text)


def _plain(answer: Any, depth: int) -> str:
    """Return the text of a tool's answer, or the JSON of a structured one."""
    if isinstance(answer, str):
        return "[attachment]" if _is_data(answer) else answer
    if depth > MAX_DEPTH:
        raise ContentUnreadable("its content is nested too deeply")
    if isinstance(answer, list):
        return "\n".join(text for part in answer if (text := _plain(part, depth + 1)))
    if isinstance(answer, dict):
        words = name_words(_type(answer))
        if "text" in words or set(answer) == {"text"}:
            return "\n".join(piece.text for piece in _fields(answer, depth + 1))
        if _kind(words) == "result":
            return _plain(_answer(answer), depth + 1)
        if _kind(words) == "media":
            texts = [text for _, text in _leaves(answer) if _is_prose(text)]
            return "\n".join(texts) or next(MEDIA[word] for word in words if word in MEDIA)
        kept = {name: value for name, value in answer.items() if not (isinstance(value, str) and _is_data(value))}
        return _json(kept) if kept else ""
    return "" if answer is None else _json(answer)


def _json(value: Any) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        raise ContentUnreadable("its content is nested too deeply, or has an integer of more than 64 bits") from None


def _joined(pieces: Iterator[Piece] | Sequence[Piece]) -> list[Piece]:
    """Join adjacent pieces of one kind. Reasoning counts only if a message has nothing else."""
    all_pieces = list(pieces)
    others = [piece for piece in all_pieces if piece.kind is not Kind.REASONING]
    joined = []
    for kind, group in groupby(others or all_pieces, key=lambda piece: piece.kind):
        same = list(group)
        tools = dict.fromkeys(tool for piece in same for tool in piece.tools)
        joined.append(Piece(kind, "\n".join(piece.text for piece in same if piece.text), tuple(tools)))
    return joined


def walk(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield a value and everything inside it, in text order, each with the names of the fields around it."""
    waiting: list[tuple[tuple[str, ...], Any]] = [((), value)]
    while waiting:
        path, inner = waiting.pop()
        yield path, inner
        if isinstance(inner, dict):
            waiting += [((*path, name), field) for name, field in reversed(inner.items())]
        elif isinstance(inner, list):
            waiting += [(path, item) for item in reversed(inner)]


def is_too_deep(value: Any) -> bool:
    """Return whether a JSON value has more than MOST_LEVELS levels: how many Python itself can take depends on its
    version."""
    level, levels = [value], 0
    while level and levels <= MOST_LEVELS:
        containers = (inner for inner in level if isinstance(inner, dict | list))
        level = [
            *chain.from_iterable(
                container.values() if isinstance(container, dict) else container for container in containers
            )
        ]
        levels += 1
    return bool(level)


def _leaves(value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the texts in a value, except those that describe it."""
    for path, inner in walk(value):
        if isinstance(inner, str) and not any(_is_about(name) for name in path):
            yield path, inner


def _is_prose(text: str) -> bool:
    return not _is_data(text) and bool(text.strip()) and not NAME.fullmatch(text.strip())


def _is_data(text: str) -> bool:
    return bool(DATA.fullmatch(text))


def _is_about(name: str) -> bool:
    words = name_words(name)
    return bool(words) and words[-1] in ABOUT


def _type(part: Mapping[str, Any]) -> str:
    kinds = map(part.get, ("type", "content_type", "part_kind", "kind"))
    return next((kind for kind in kinds if isinstance(kind, str)), "")


def name_words(name: str) -> tuple[str, ...]:
    """Split names such as `tool_result`, `toolResult` and `TOOL-RESULT` into words."""
    return tuple(word.lower() for word in WORD.findall(name))
