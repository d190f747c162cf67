"""How much a sentence tells: what it carries, who said it, and whether it is mere politeness."""

import re

from afterword.streams.summarizer.extractive.candidates import Candidate, is_question
from afterword.streams.summarizer.extractive.phrases import COMMITMENT, GREETING, OFFER_OF_HELP

_NUMBER = re.compile(r"\d")
_NAME = re.compile(r"(?<=[^\s.!?:。！？] )(?:[^\W\d_](?=\w*[A-Z])|[A-ZÀ-ÖØ-ÞА-ЯΑ-Ω])\w+")
_REFERENCE = re.compile(r"https?://|www\.|\w@[\w-]+\.\w|\b[A-Z]{2,}[-_#]?\d+|#\d+|[$€£¥₹]\s?\d|\d\s?(?:%|[$€£¥₹])")
ROLE_WEIGHTS = {"user": 1.0, "assistant": 1.0, "tool": 0.55, "system": 0.3}
"""People and their assistant make the conversation; a tool's output and the system's instructions surround it."""
POLITE_TERMS = 4
"""A greeting with more terms than this says something else as well."""
FEW_TERMS = 3
BRIEF = 0.4
"""Of its weight, what a sentence of fewer terms keeps."""
ASKS_BACK = 0.5
"""The same for a question by the assistant: what it learned by it is in the answer."""


def informativeness(text: str) -> float:
    """0 … 1: numbers, references such as codes, amounts and addresses, names, decisions and commitments."""
    names = len(_NAME.findall(text))
    score = 0.3 * bool(_NUMBER.search(text)) + 0.3 * bool(_REFERENCE.search(text))
    return min(1.0, score + 0.15 * min(names, 2) + 0.25 * bool(COMMITMENT.search(text)))


def is_politeness(text: str, terms: int) -> bool:
    """Greetings, thanks and offers of help, in the languages we know them in."""
    return bool(OFFER_OF_HELP.search(text)) or (terms <= POLITE_TERMS and bool(GREETING.match(text)))


def weight(candidate: Candidate, terms: list[str], centrality: float) -> float:
    """One number for how well the sentence stands for its episode; only its order against others means anything."""
    score = centrality + 0.6 * informativeness(candidate.text) + _position(candidate) + 0.15 * candidate.answers
    if candidate.role != "user" and is_question(candidate.text):
        score *= ASKS_BACK
    if len(set(terms)) < FEW_TERMS:
        score *= BRIEF
    return score * ROLE_WEIGHTS.get(candidate.role, 1.0)


def _position(candidate: Candidate) -> float:
    """What opens a conversation says what it is about, what opens a message says what is to come."""
    opens_episode = 0.3 if candidate.message < 2 and candidate.role == "user" else 0.0
    return opens_episode + (0.1 if candidate.place == 0 else 0.0)
