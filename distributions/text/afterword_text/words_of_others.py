"""Whose words a message's text consists of: the sender's own, or what the sender quotes, forwards or hands over.

Structure decides: quotation marks, the lines that mail programs write, the form of transcripts and of machine text.
The few words that have to be known are in `vocabulary.toml`. Linear in the text's length.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from afterword_text.language import pattern
from afterword_text.sentences import MAX_MESSAGE_CHARACTERS, both_ends

LINE_CHARACTERS = 400
"""Only this much of a line is compared with the forms of introductions."""
FEW_WORDS = 3
"""Fewer words in quotation marks name something, instead of telling what somebody said."""
LEAST_MACHINE_LINES = 3
MOST_BETWEEN = 3
"""So many lines between two of machine text may look like prose, and belong to it."""
PLAIN_SHARE = 0.5
"""A line is machine text if less than this share of its characters is in plain words."""
LONGEST_WORD = 60
"""No plain word has more characters; encoded data has."""
HEADER_LINES = 6
"""The lines of a mail's header are among this many lines."""
QUESTION_MARKS = ("?", "？")
NEAR_CHARACTERS = 80
"""A verb this near to a quotation may say whose words it is."""
MOST_CHARACTERS = 4 * MAX_MESSAGE_CHARACTERS
KEPT_MESSAGES = 256


class Whose(StrEnum):
    """Whose words a part of a message is. The value marks them in a summary."""

    OWN = "own"
    QUOTED = "quoted"
    """Lines after ">", words in quotation marks, and what follows "she wrote:"."""
    FORWARDED = "forwarded"
    """A forwarded mail, or the history below an answer."""
    PASTED = "pasted"
    """A transcript, or a text that is to be translated, checked or read."""
    MACHINE = "machine text"
    """Code, logs, tables and encoded data."""


class Words(NamedTuple):
    """A part of a text. The parts of a text are in order, and leave no gap."""

    start: int
    end: int
    whose: Whose
    author: str = ""
    """Who said it, as the text calls them ("Ida Holm", "My colleague"), if it tells."""
    is_inline: bool = False
    """True if it stands in quotation marks, or as code, inside a sentence."""


class _Line(NamedTuple):
    start: int
    end: int
    indent: int
    text: str
    """Its beginning, without spaces around it."""
    small: str
    """The same in lower case, which is several times faster to search than ignoring the case."""


class _Block(NamedTuple):
    """Lines that have one author."""

    end: int
    """The number of the line after it."""
    whose: Whose
    author: str = ""
    begin: int = 0
    """This many characters of the first line are the sender's own."""


def _compiled(before: str, name: str, after: str) -> re.Pattern[str]:
    return re.compile(f"{before}(?:{pattern('others', name)}){after}")


_FENCE = re.compile(r"```|~~~")
_QUOTED_LINE = re.compile(r"(?:>|&gt;)(?!=|>>|\s?\d)")
_DATE_OR_ADDRESS = re.compile(r"\d.*\d|[^\s@]@[^\s@]")
_ATTRIBUTION = _compiled(r"\b", "wrote", r"\b[^:]{0,60}:\W{0,3}$")
_AUTHOR = re.compile(
    r"(?:[,\d]\s+|^\s*)(?P<author>[^\W\d_][^,<>\d:]{0,60}?)\s*(?:[<\[(][^<>]*[>\])])?(?: h?a)?[\s:*]*$"
)
_MAIL = _compiled(r"[-_=*>\s]{0,40}", "mail", r"\s*:?[-_=*<\s]{0,40}$")
_FORWARDS = _compiled("", "forwards", r"\s?:\s")
_FROM = _compiled(r"\W{0,3}", "from", r"\s?:\W{0,3}\s")
_SUBJECT = _compiled(r"\W{0,3}", "subject", r"\s?:")
_HEADER = _compiled(r"\W{0,3}", "headers", r"\s?:\W{0,3}\s")
_REPORTED = _compiled(r"\b", "reported", r"\b")
_TASK = _compiled(r"(?<!\w)(?<!\bi )(?<!\bich )(?<!\bje )(?<!\bik )(?<!\bjeg )", "tasks", r"(?!\w)")
_LOOSE_TASK = _compiled(r"(?<!\w)(?<!\bi )(?<!\bich )(?<!\bje )(?<!\bik )(?<!\bjeg )", "loose_tasks", r"(?!\w)")
_HOW_TO_SAY = _compiled(r"(?<!\w)", "how_to_say", r"(?!\w)")
_POINTER = _compiled(r"(?<!\w)", "pointers", r"(?!\w)")
_TEXT_NOUN = _compiled(r"(?<!\w)", "texts", r"(?!\w)")
_ONESELF = _compiled(r"(?<!\w)", "oneself", r"(?!\w)")
_MINE = _compiled(r"(?<!\w)", "mine", r"(?!\w)")
_ROLE = _compiled("", "speakers", "$")
_SPEAKER = re.compile(
    r"(?:[\[(]?(?:\d{1,4}[./-]\d{1,2}(?:[./-]\d{1,4})?,?\s)?\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]m)?[\])]?\s?[-–]?\s?)?"
    r"(?:<(?P<nick>@?[\w .'-]{1,30})>|\W{0,2}(?P<name>[^\W\d_][\w .'’-]{0,30}?)"
    r"(?:,?\s?[\[(]?\d{1,2}:\d{2}(?::\d{2})?(?:\s?[ap]m)?[\])]?)?(?:\W{0,2}:|(?<=\b[QA])\.)\W{0,2})(?:\s|$)"
)
"""A line of a transcript begins with a name, perhaps beside a time."""
_COLON = re.compile(r":(?:\s+|$)")
_SENTENCE_END = re.compile(r"[.!?…](?<!\bmr.)(?<!\bmrs.)(?<!\bms.)(?<!\bdr.)\s+", re.IGNORECASE)
_PLAIN = re.compile(r"[\"'(*_-]*[A-Za-z]+(?:['-][A-Za-z]+)*[\"')*_]*[.,;:!?]*[\"')*_]*")
_CODE = re.compile(
    r".*[{};]$|Traceback \(|[\w.]+(?:Error|Exception|Warning)\b|at \S+\(|from \S+:\d|</?\w.*>$|[+-]{3} |@@ |File \""
    r"|[\w.]+\(.*\)\s*[:{]?$|[-+=|]{3,}|(?:\S+ )?(?:INFO|WARN|WARNING|ERROR|ERR!|DEBUG|TRACE|FATAL|FAILED)(?!\w)"
    r"|\$ \w|\S+:\d+(?::\d+)?:? |\W?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d "
    r"|\[ *\d+\.\d+\] |[d-][rwx-]{9} |\\\w|(?:SELECT|FROM|WHERE|AND|GROUP|ORDER|JOIN|INSERT|UPDATE|VALUES|SET)(?!\w)"
)
"""How a line of a program, its output or its log begins, or ends."""
_ROW = re.compile(
    r"(?:[^,]*,(?=\S)){2}|(?:[^;]*;(?=\S)){2}|(?:[^\t]*\t\s*\S){2}|(?:.*?\S {2,}(?=\S)){2}|(?:[^|]*\|){2}"
)
"""A row of a table has at least three columns."""
_ENTRY = re.compile(r"(?:- )?[a-z][\w.-]*:(?:\s|$)")
"""An entry of YAML, which is indented."""
_FIGURES = re.compile(r"\d+")
_LABELLED = re.compile(r"\S+:(?:\s|$)|\S+ \d+$")
_BLOB = re.compile(r"\S{100}|^[{\[<].{100,}[}\]>,]")
"""Encoded data, or a whole document in one line, needs no other lines beside it."""
_LIST = re.compile(r"(?:[-*+•·–]|\d{1,3}[.)])\s")
_INLINE = re.compile(
    r"“[^“”]*”|„[^„“”\"]*[“”\"]|«[^«»]*»|»[^«»]*«|「[^「」]*」|『[^『』]*』|(?<![\w\"])\"[^\"]*\"(?!\w)|`[^`\n]+`"
    r"|(?<!\w)‘[^‘’\n]*(?:’\w[^‘’\n]*)*’(?!\w)|(?<![\w'])'(?:[^'\n]|(?<=\w)'(?=\w))++'(?!\w)"
)
_MARKS = frozenset("“„«»「『\"`‘'")


@lru_cache(maxsize=KEPT_MESSAGES)
def parts_of(text: str) -> tuple[Words, ...]:
    """Split a message's text by whose words they are."""
    lines = _lines(text)
    task = _end_of_text_before_its_task(lines)
    parts: list[Words] = []
    for part in _blocks(lines):
        if part.whose is Whose.OWN and part.start < task:
            parts.append(Words(part.start, min(part.end, task), Whose.PASTED))
            part = part._replace(start=min(part.end, task))
        for one in _with_quotations(text, part) if part.whose is Whose.OWN else (part,):
            if one.start < one.end and parts and parts[-1][2:] == one[2:]:
                parts[-1] = parts[-1]._replace(end=one.end)
            elif one.start < one.end:
                parts.append(one)
    return tuple(parts)


def own_words(text: str) -> str:
    """Return the sender's own words: "…" stands for others' words in a line, and a line break for whole lines.

    Of a text longer than MOST_CHARACTERS, only the beginning and the end are read.
    """
    if len(text) > MOST_CHARACTERS:
        text = "\n".join(both_ends(text, MOST_CHARACTERS))
    kept = (
        text[part.start : part.end] if part.whose is Whose.OWN else "\n" * text.endswith("\n", 0, part.end) or "…"
        for part in parts_of(text)
    )
    return "".join(kept).strip()


def without_headers(words: str) -> str:
    """Return what others say in these lines, without those that a mail program wrote around it."""
    kept = [
        line.text
        for line in _lines(words)
        if not any(kind.match(line.small) for kind in (_FROM, _SUBJECT, _HEADER, _MAIL, _FORWARDS))
        and not (line.text.endswith(":") and _ATTRIBUTION.search(line.small))
    ]
    return "\n".join(kept).strip()


def _lines(text: str) -> list[_Line]:
    lines, start = [], 0
    for line in text.splitlines(keepends=True):
        shown = line[:LINE_CHARACTERS].strip()
        small = shown.lower()
        indent = len(line) - len(line.lstrip(" \t"))
        lines.append(_Line(start, start + len(line), indent, shown, small if len(small) == len(shown) else shown))
        start += len(line)
    return lines


def _blocks(lines: Sequence[_Line]) -> Iterator[Words]:
    """Yield the parts that begin with a line, or after a colon in it, and end with one."""
    machine, spoken = _machine_lines(lines), _transcript_lines(lines)
    last = max((at for at, line in enumerate(lines) if line.text), default=0)
    at = 0
    while at < len(lines):
        first = lines[at]
        if not first.text or (machine[at] and _sender_of_mail(lines, at) is None):
            block = _Block(at + 1, Whose.OWN)
        elif (speaker := spoken[at]) is not None:
            block = _Block(at + 1, Whose.PASTED, speaker)
        else:
            block = _begins(lines, at, last)
        begin = first.start + block.begin
        end = lines[block.end - 1].end
        until = _begin_of_question(block, lines[last], begin) if block.end > last else end
        yield Words(first.start, begin, Whose.OWN)
        for line, is_machine in zip(lines[at : block.end], machine[at : block.end], strict=True):
            whose, author = (Whose.MACHINE, "") if is_machine else (block.whose, block.author)
            yield Words(max(line.start, begin), min(line.end, until), whose, author)
        yield Words(until, end, Whose.OWN)
        at = block.end


def _begins(lines: Sequence[_Line], at: int, last: int) -> _Block:
    """Return the block that begins in or after a line."""
    line, everything = lines[at], len(lines)
    if _QUOTED_LINE.match(line.text):
        return _Block(at + 1, Whose.QUOTED)
    if (history := _attribution(lines, at)) is not None:
        used, author = history
        quoted = (n for n in range(at + used, everything) if lines[n].text and not _QUOTED_LINE.match(lines[n].text))
        answer = next(quoted, everything)
        is_quoted = any(line.text for line in lines[at + used : answer])
        return _Block(answer if is_quoted else everything, Whose.FORWARDED, author)
    if (sender := _sender_of_mail(lines, at)) is not None:
        return _Block(everything, Whose.FORWARDED, sender)
    if (introduced := _introduced(line, goes_on=at < last)) is None:
        return _Block(at + 1, Whose.OWN)
    begin, whose, author, is_paragraph = introduced
    begin = min(begin + line.indent, line.end - line.start)
    blank = (n for n in range(at, everything) if not lines[n].text)
    return _Block(next(blank, everything) if is_paragraph else everything, whose, author, begin)


def _begin_of_question(block: _Block, last: _Line, begin: int) -> int:
    """Return the end of the last block: a question below a text that somebody hands over is about it."""
    question = last.start + last.indent + _last_sentence(last.text)
    is_about = block.begin and last.text.endswith(QUESTION_MARKS) and question > begin
    return question if is_about else sys.maxsize


def _last_sentence(text: str) -> int:
    return max((end.end() for end in _SENTENCE_END.finditer(text)), default=0)


def _attribution(lines: Sequence[_Line], at: int) -> tuple[int, str] | None:
    """Return how many lines introduce the history of a mail here, as in "On Tuesday, Ida wrote:", and its author."""
    for used in (1, 2):
        last = lines[at + used - 1 : at + used]
        if last and last[0].text.endswith((":", ":*")) and not (used > 1 and _attribution(lines[at + 1 : at + 2], 0)):
            small = " ".join(line.small for line in lines[at : at + used])
            verb = _ATTRIBUTION.search(small)
            if verb and _DATE_OR_ADDRESS.search(small, 0, verb.start()):
                shown = " ".join(line.text for line in lines[at : at + used])
                after = shown[verb.start() :].partition(" ")[2]
                named = _AUTHOR.search(after if len(after) > FEW_WORDS else shown[: verb.start()].rstrip())
                return used, named["author"] if named else ""
        if not lines[at].text:
            break
    return None


def _sender_of_mail(lines: Sequence[_Line], at: int) -> str | None:
    """Return the sender of a mail, "" if unknown, if its header or a line that announces it begins here."""
    line = lines[at]
    header = [other for other in lines[at : at + HEADER_LINES + 2] if other.text][:HEADER_LINES]
    sender = next((other for other in header if _FROM.match(other.small)), None)
    name = sender.text.split(":", 1)[1].strip(" *") if sender else ""
    is_announced = _MAIL.match(line.small) or (at == 0 and _FORWARDS.match(line.small))
    if is_announced:
        return name
    kinds = (_FROM, _SUBJECT, _HEADER)
    fields = [kind for other in header for kind in kinds if kind.match(other.small)]
    begins = any(kind.match(line.small) for kind in kinds)
    is_header = len(fields) > 1 and (_SUBJECT in fields or "@" in name)
    return name if begins and is_header else None


def _introduced(line: _Line, *, goes_on: bool) -> tuple[int, Whose, str, bool] | None:
    """Return where others' words begin in or after a line, whose, their author, and if they end with the paragraph."""
    small = line.small
    length = line.end - line.start
    if asked := _HOW_TO_SAY.search(small):
        end = _SENTENCE_END.search(small, asked.end())
        is_elsewhere = end and _POINTER.search(small, asked.end(), end.start())
        return (end.end() if end and is_elsewhere else asked.end()), Whose.PASTED, "", not is_elsewhere
    for colon in _COLON.finditer(small):
        begin = _last_sentence(small[: colon.start()])
        introduction, follows = small[begin : colon.start()], bool(small[colon.end() :])
        if not (follows or goes_on) or small[colon.end() : colon.end() + 1] in _MARKS:
            break
        loose = _LOOSE_TASK.search(introduction)
        is_command = loose and not introduction[: loose.start()].strip() and " " in introduction.strip()
        if _TASK.search(introduction) or (loose and (is_command or _names_text(introduction))):
            return (colon.end() if follows else length), Whose.PASTED, "", False
        if (said := _REPORTED.search(introduction)) and not _ONESELF.search(introduction, 0, said.start()):
            who = line.text[begin : begin + said.start()].strip(" ,")
            return (colon.end() if follows else length), Whose.QUOTED, who, follows
        noun = list(_TEXT_NOUN.finditer(introduction))[-1:]
        is_of_others = not follows or (noun and noun[0].end() == len(introduction) and not _MINE.search(introduction))
        if noun and is_of_others and not _ONESELF.search(introduction):
            return (colon.end() if follows else length), Whose.PASTED, "", follows
    begin = _last_sentence(small)
    named = _TEXT_NOUN.search(small, begin)
    is_loose = named and _LOOSE_TASK.search(small, begin) and not _ONESELF.match(small, begin)
    is_shown = named and small.endswith((*QUESTION_MARKS, "👇")) and _POINTER.search(small, begin)
    is_task = goes_on and (is_loose or is_shown or _TASK.search(small, begin))
    return (length, Whose.PASTED, "", False) if is_task else None


def _names_text(introduction: str) -> bool:
    return bool(_POINTER.search(introduction) or _TEXT_NOUN.search(introduction))


def _end_of_text_before_its_task(lines: Sequence[_Line]) -> int:
    """Return the end of a text that the last line of a message wants translated or summarized; 0 if it wants none."""
    last = next((line for line in reversed(lines) if line.text), None)
    if last is None or last.small.endswith(":"):
        return 0
    begin = _last_sentence(last.small)
    task = _TASK.search(last.small, begin)
    return last.start + last.indent + begin if task and _POINTER.search(last.small, begin) else 0


def _transcript_lines(lines: Sequence[_Line]) -> list[str | None]:
    """Return the speaker of each line of a transcript, and None for other lines.

    People who fill in a form also write names and colons; in a transcript, a name is there again, or is a role.
    """
    spoken: list[str | None] = [None] * len(lines)
    labels = {at: label for at, line in enumerate(lines) if (label := _SPEAKER.match(line.text))}
    named = {at: label["nick"] or label["name"] for at, label in labels.items() if label.end() < len(lines[at].text)}
    counts = Counter(name.lower() for name in named.values())
    speakers = {name for name, count in counts.items() if count > 1 or _ROLE.match(name)}
    turns = [at for at, name in named.items() if name.lower() in speakers]
    if len(turns) < 2 or len(counts) < 2:
        return spoken
    speaker = ""
    for at in range(turns[0], len(lines)):
        if at > turns[-1] and (not lines[at].text or lines[at].text.endswith(QUESTION_MARKS)):
            break
        spoken[at] = speaker = named.get(at, speaker)
    return spoken


def _machine_lines(lines: Sequence[_Line]) -> list[bool]:
    """Return which lines are code, logs, tables or encoded data: several in a row, or one that is long."""
    is_machine = [False] * len(lines)
    is_fenced = False
    run: list[int] = []
    for at, line in enumerate(lines):
        before, after = lines[at - 1 : at + 1], lines[at : at + 2]
        if _FENCE.match(line.text):
            is_machine[at] = True
            is_fenced = not is_fenced
            run = []
        elif is_fenced:
            is_machine[at] = True
        elif _is_machine_text(line) or (run and line.indent) or any(map(_differs_in_figures, (before, after))):
            run.append(at)
            if len(run) >= LEAST_MACHINE_LINES or _BLOB.search(line.text):
                marked = next((n for n in range(at, run[0], -1) if is_machine[n - 1]), run[0])
                is_machine[marked : at + 1] = [True] * (at + 1 - marked)
        elif run and (at - run[-1] > MOST_BETWEEN or line.text.endswith((".", "!", "?"))):
            run = []
    for at in range(len(lines) - 1, 1, -1):  # "panic: index out of range" and the like, above a trace
        is_machine[at - 1] |= is_machine[at] and bool(_LABELLED.match(lines[at - 1].text))
    return is_machine


def _differs_in_figures(pair: Sequence[_Line]) -> bool:
    """Return whether two lines differ in their numbers alone."""
    first, second = ("".join(_FIGURES.split(line.text)) for line in pair) if len(pair) > 1 else ("", "")
    return bool(first) and first == second and pair[0].text != pair[1].text


def _is_machine_text(line: _Line) -> bool:
    text = line.text
    if not text or _LIST.match(text) or not text.isascii():
        return False
    if _CODE.match(text) or _ROW.match(text) or (line.indent and _ENTRY.match(text)):
        return True
    tokens = text.split()
    plain = sum(len(token) for token in tokens if len(token) <= LONGEST_WORD and _PLAIN.fullmatch(token))
    return plain < PLAIN_SHARE * sum(map(len, tokens))


def _with_quotations(text: str, part: Words) -> Iterator[Words]:
    """Cut what stands in quotation marks out of the sender's words."""
    begin = part.start
    if not _MARKS.isdisjoint(text[part.start : part.end]):
        for quoted in _INLINE.finditer(text, part.start, part.end):
            who = _quoted_author(text, quoted, begin, part.end)
            if who is not None:
                yield Words(begin, quoted.start(), Whose.OWN)
                whose = Whose.MACHINE if quoted[0][0] == "`" else Whose.QUOTED
                yield Words(quoted.start(), quoted.end(), whose, who, is_inline=True)
                begin = quoted.end()
    yield Words(begin, part.end, Whose.OWN)


def _quoted_author(text: str, quoted: re.Match[str], begin: int, end: int) -> str | None:
    """Return who is quoted, "" if it is unknown; None if the words are a name or a title."""
    if quoted[0][0] == "`":
        return ""
    before = text[max(begin, quoted.start() - NEAR_CHARACTERS) : quoted.start()]
    before = before[_last_sentence(before) :]
    said = list(_REPORTED.finditer(before.lower()))[-1:]
    if said and len(before[said[0].end() :].split()) < FEW_WORDS:
        return before[: said[0].start()].split("\n")[-1].strip(" ,")
    after = _SENTENCE_END.split(text[quoted.end() : min(end, quoted.end() + NEAR_CHARACTERS)].split("\n")[0])[0]
    if (said_after := _REPORTED.search(after.lower())) and len(after[: said_after.start()].split()) < FEW_WORDS:
        return after[: said_after.start()].strip(" ,") or after[said_after.end() :].strip(" ,.")
    words = re.findall(r"[^\W\d_][\w'’-]*", quoted[0][1:-1])
    long_words = [word for word in words if len(word) > FEW_WORDS]
    is_title = len(long_words) > 1 and 2 * sum(word[0].isupper() for word in long_words) > len(long_words)
    is_title &= not _ONESELF.search(quoted[0].lower())
    return "" if len(words) >= FEW_WORDS and not is_title else None
