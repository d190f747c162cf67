"""Ways in which a faithful summary is spoilt. Written without a look at the gate: what it knows, this must not know."""

import random
import re
from collections.abc import Callable
from dataclasses import replace

from afterword.streams.summarizer.sentences import split_sentences
from benchmarks.quality.pairs import Pair

_NUMBER = re.compile(r"(?<![\w-])\d+(?:[.,]\d+)*(?![\w-])")
_SMALL = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "twelve", "twenty")
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(_SMALL)})\b", re.IGNORECASE)
_NAMES = (
    ("Karen Whitfield", "Boston"),
    ("Dmitri Volkov", "Sheffield"),
    ("Priya Raman", "Hyderabad"),
    ("Lucas Oyelaran", "Lagos"),
    ("Greta Lindqvist", "Uppsala"),
    ("Hector Salgado", "Tucson"),
    ("Naomi Fairbanks", "Halifax"),
    ("Owen Pritchard", "Swansea"),
    ("Yuki Hamada", "Sapporo"),
    ("Bernadette Kruse", "Bremen"),
)
_FIRMS = ("Acme Logistics", "Northwind Bank", "Globex", "Contoso", "Initech", "Umbrella Insurance")
LOOPED_CHARACTERS = 900

Edit = Callable[[str], str]


def swap_numbers(pair: Pair, rng: random.Random) -> Pair | None:
    """One number, or all, changed wherever they stand; None for a summary without any."""
    found = sorted({m[0] for text in _texts(pair) for p in (_NUMBER, _NUMBER_WORD) for m in p.finditer(text)})
    if not found:
        return None
    chosen = found if rng.random() < 0.5 else [rng.choice(found)]
    changes = {old: _other_number(old, pair, rng) for old in chosen}
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(changes, key=len, reverse=True)))})(?![\w-])")
    return _edited(pair, "swapped_numbers", lambda text: pattern.sub(lambda m: changes[m[0]], text))


def invent_names(pair: Pair, rng: random.Random) -> Pair:
    """Somebody, some place or some firm that nobody spoke of."""
    (person, place), firm = rng.choice(_NAMES), rng.choice(_FIRMS)
    ways: list[Edit] = [
        lambda text: re.sub(r"\b(?:The user|Dawn|Tracy)\b", person, text),
        lambda text: _sentence_added(text, f"{person} from {firm} will call back."),
        lambda text: _sentence_added(text, f"They want to meet {person} in {place}."),
        lambda text: _sentence_added(text, f"It was arranged with {firm} in {place}."),
    ]
    spoilt = replace(pair, short=pair.short, long=rng.choice(ways)(pair.long), kind="invented_names")
    return spoilt if spoilt.long != pair.long else replace(spoilt, long=ways[1](pair.long))


def loop(pair: Pair, rng: random.Random) -> Pair:
    """It begins well and then says the same again and again, a sentence or a few words."""
    sentences = split_sentences(pair.long)
    last = sentences[rng.randrange(len(sentences))]
    words = last.split()
    piece = last if rng.random() < 0.5 else " ".join(words[: rng.randint(2, 6)])
    start = " ".join(sentences[: rng.randint(1, len(sentences))])
    times = max(4, (LOOPED_CHARACTERS - len(start)) // max(1, len(piece)))
    return replace(pair, kind="looping", long=f"{start} {' '.join([piece] * times)}")


def of_another(pair: Pair, other: Pair) -> Pair:
    return replace(pair, kind="other_dialogue", title=other.title, short=other.short, long=other.long)


def _texts(pair: Pair) -> tuple[str, str, str]:
    return (pair.title, pair.short, pair.long)


def _edited(pair: Pair, kind: str, edit: Edit) -> Pair:
    return replace(pair, kind=kind, title=edit(pair.title), short=edit(pair.short), long=edit(pair.long))  # type: ignore[arg-type]  # one of Kind


def _other_number(old: str, pair: Pair, rng: random.Random) -> str:
    """Number of the same form that is not in the conversation."""
    said = " ".join(text for _, text in pair.turns).lower()
    if not old[0].isdigit():
        return rng.choice([word for word in _SMALL if word != old.lower() and not re.search(rf"\b{word}\b", said)])
    while True:
        new = re.sub(r"\d", lambda _: str(rng.randint(1, 9)), old)
        if new != old and not re.search(rf"(?<!\d){re.escape(new)}(?!\d)", said):
            return new


def _sentence_added(text: str, sentence: str) -> str:
    first, _, rest = text.partition(". ")
    return f"{first}. {sentence} {rest}" if rest else f"{text} {sentence}"
