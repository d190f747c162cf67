"""Words of natural languages that rules look for. They are in `vocabulary.toml`, so that one file adds a language."""

import tomllib
from pathlib import Path
from typing import Any

VOCABULARY: dict[str, Any] = tomllib.loads(Path(__file__).with_name("vocabulary.toml").read_text(encoding="utf-8"))


def word_set(section: str, name: str) -> frozenset[str]:
    return frozenset(VOCABULARY[section][name].split())


def pattern(section: str, name: str) -> str:
    """Return a regular expression, which may be written on several lines."""
    return str(VOCABULARY[section][name]).replace("\n", "")
