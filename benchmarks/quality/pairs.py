"""The labelled set: a conversation, a summary of it or of something else, and which of the two it is."""

import gzip
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from afterword.streams.summarizer.quality import SourceTexts, Texts

DATA = Path(__file__).parent / "data"
PAIRS = DATA / "pairs.jsonl.gz"

Split = Literal["dev", "test"]
Kind = Literal["faithful", "swapped_numbers", "invented_names", "other_dialogue", "other_language", "looping"]


@dataclass(frozen=True)
class Pair:
    id: str
    """Id of the conversation; all pairs of one are in the same split."""
    split: Split
    kind: Kind
    origin: str
    """Author of the summary, or of the one that was spoilt: people, us, a template, the extractive method."""
    turns: tuple[tuple[str, str], ...]
    """Role and content."""
    title: str
    short: str
    long: str

    @property
    def faithful(self) -> bool:
        return self.kind == "faithful"

    @property
    def texts(self) -> Texts:
        return Texts(self.title, self.short, self.long)

    @property
    def source(self) -> SourceTexts:
        roles = dict.fromkeys(role for role, _ in self.turns)
        by_speaker = tuple("\n".join(text for who, text in self.turns if who == role) for role in roles)
        return SourceTexts(episode="\n".join(text for _, text in self.turns), by_speaker=by_speaker)


def read(path: Path = PAIRS) -> list[Pair]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        found = [json.loads(line) for line in lines]
    return [Pair(**{**each, "turns": tuple((role, text) for role, text in each["turns"])}) for each in found]


def write(pairs: Iterable[Pair], path: Path = PAIRS) -> None:
    """The same pairs always make the same bytes."""
    lines = (json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs)
    path.write_bytes(gzip.compress("".join(lines).encode(), compresslevel=9, mtime=0))
