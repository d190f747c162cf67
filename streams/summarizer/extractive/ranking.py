"""Ranking of an episode's sentences: candidates, their weights, LexRank and a choice without repetition."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from afterword.schemas import EpisodeMessage
from afterword.streams.summarizer.control_tokens import strip_control_tokens
from afterword.streams.summarizer.cutting import both_ends
from afterword.streams.summarizer.sentences import cut_at_word, split_sentences

MAX_CANDIDATES = 240
"""Sentences that are compared in pairs: with 240 of 300 characters a summary takes less than half a second."""
MAX_SENTENCE_CHARACTERS = 300
MAX_MESSAGE_CHARACTERS = 24_000
"""A longer message is read only at its beginning and its end, where people say what they want."""

Terms = Callable[[str], list[str]]
"""Stems of a text in one language, without its stop words."""

_NUMBER = re.compile(r"\d")
_NAME = re.compile(r"(?<=[^\s.!?:。！？] )(?:[^\W\d_](?=\w*[A-Z])|[A-ZÀ-ÖØ-ÞА-ЯΑ-Ω])\w+")
_REFERENCE = re.compile(r"https?://|www\.|\w@[\w-]+\.\w|\b[A-Z]{2,}[-_#]?\d+|#\d+|[$€£¥₹]\s?\d|\d\s?(?:%|[$€£¥₹])")
ROLE_WEIGHTS = {"user": 1.0, "assistant": 1.0, "tool": 0.55, "system": 0.3}
"""Users and assistants hold the conversation; tool output and system instructions only surround it."""
POLITE_TERMS = 4
"""A greeting with more terms than this has other content too."""
FEW_TERMS = 3
BRIEF = 0.4
"""Factor for the weight of a sentence with fewer terms."""
ASKS_BACK = 0.5
"""Factor for a question by the assistant: its result is in the answer."""

DAMPING = 0.85
"""Damping factor of PageRank, as in the paper (there d = 0.15 for the jump)."""
ITERATIONS = 40
RELEVANCE = 0.7
"""λ of MMR: weight of relevance against novelty."""
REPETITION = 0.9
"""Cosine from which a sentence repeats another one."""

Matrix = NDArray[np.float64]

# Phrases of politeness and of commitment. Each entry is a piece of a regular expression; a language that is missing
# here only loses a hint.
_GREETINGS = (
    ("hi", "hello", "hey", "good (?:morning|afternoon|evening|day)", "greetings", "dear", "welcome", "thanks?"),
    ("thank you", "you'?re welcome", "(?:good)?bye", "see you", r"have a (?:\w+ )?(?:day|one|evening|weekend)"),
    ("no problem", "my pleasure", "glad (?:to|i)", "happy to help"),
    ("hallo", "guten (?:tag|morgen|abend)", "danke", "vielen dank", "gern geschehen", "tschüss", "auf wiedersehen"),
    ("bonjour", "bonsoir", "salut", "merci", "de rien", "au revoir"),
    ("hola", "buen[oa]s? (?:d[ií]as?|tardes|noches)", "(?:muchas )?gracias", "de nada", "adi[oó]s"),
    ("ol[aá]", "bom dia", "boa (?:tarde|noite)", "obrigad[oa]", "ciao", "buongiorno", "grazie", "prego"),
)
_GREETINGS_UNSPACED = ("你好", "您好", "谢谢", "不客气", "再见", "こんにちは", "ありがとう", "どういたしまして")
_OFFERS = (
    ("how (?:can|may|could) (?:i|we) (?:help|assist|be of)", "what can (?:i|we) do for you", "anything else"),
    ("(?:glad|happy|here) to (?:help|assist)", "let me know if", "feel free to", "hope (?:this|that) helps"),
    ("do you have any (?:other|more|further) questions", "how are you", "nice to meet you"),
    (r"(?:wie|womit) kann ich (?:\w+ )?(?:helfen|behilflich)", "(?:comment|en quoi) puis-je vous aider"),
    ("(?:en qué|cómo) (?:te |le |les )?puedo ayudar", "(?:como|em que) posso ajudar", "come posso aiutar"),
)
_OFFERS_UNSPACED = ("有什么可以帮", "能帮您什么", "何かお手伝い", "いかがなさいました")
_COMMITMENTS = (
    (r"decid\w+", r"agree\w*", r"confirm\w*", "book(?:ed|ing)?", r"order\w*", r"cancel\w*", "deadline", "due", "must"),
    (r"need\w*", r"want\w*", "will", "going to", r"promis\w+", r"require\w*", "allergic", r"prefer\w*", "because"),
    ("beschlossen", "vereinbart", r"bestätig\w+", "gebucht", "muss", "möchte", "brauche", "werde"),
    (r"décid\w+", "convenu", r"réserv\w+", "dois", "voudrais", "besoin"),
    (r"decidi\w+", r"acord\w+", r"reserv\w+", "necesito", "quiero", "debo", "preciso", "quero", "vorrei", "devo"),
)
_COMMITMENTS_UNSPACED = ("决定", "确认", "预订", "需要", "必须", "決定", "確認", "予約", "必要")

_TALK = """
yes yeah yep no nope not ok okay oh ah um uh hm hmm well so please pls sorry sure great nice cool wow lol haha
really just also like want need get got know think tell say going go see way thing things lot much many still even
hi hello hey thanks thank bye ja nein bitte danke hallo gut oui non merci bonjour bien sí si gracias hola bueno sim não
obrigado olá grazie ciao 是 好 好的 谢谢 你好 您好 はい いいえ
"""
FILLERS = frozenset(_TALK.split())
"""Words of talk that carry no content, although they are no stop words of written language."""


def _one_of(rows: Iterable[Iterable[str]]) -> str:
    return "|".join(piece for row in rows for piece in row)


GREETING = re.compile(
    rf"\W*(?:(?:{_one_of(_GREETINGS)})\b|{'|'.join(_GREETINGS_UNSPACED)})", re.IGNORECASE
)  # for `match`: only the beginning of a sentence greets
OFFER_OF_HELP = re.compile(rf"\b(?:{_one_of(_OFFERS)})|{'|'.join(_OFFERS_UNSPACED)}", re.IGNORECASE)
COMMITMENT = re.compile(rf"\b(?:{_one_of(_COMMITMENTS)})\b|{'|'.join(_COMMITMENTS_UNSPACED)}", re.IGNORECASE)


@dataclass(frozen=True)
class Candidate:
    """A sentence that may become part of the summary, and its place."""

    text: str
    role: str
    message: int
    """Index of its message in the episode."""
    place: int
    """Index of the sentence in its message."""
    answers: bool = False
    """True if it opens a reply to somebody else's question."""


def candidates(messages: Iterable[EpisodeMessage]) -> list[Candidate]:
    """Split messages into sentences, in order; evenly thinned to MAX_CANDIDATES."""
    found = list(_sentences(messages))
    if len(found) <= MAX_CANDIDATES:
        return found
    return [found[i * len(found) // MAX_CANDIDATES] for i in range(MAX_CANDIDATES)]


def clean(text: str) -> str:
    """Strip control tokens, and the middle of a huge message."""
    if len(text) > MAX_MESSAGE_CHARACTERS:
        text = "\n".join(both_ends(text, MAX_MESSAGE_CHARACTERS))
    return strip_control_tokens(text)


def _sentences(messages: Iterable[EpisodeMessage]) -> Iterator[Candidate]:
    asked_by: str | None = None
    for index, message in enumerate(messages):
        texts = [" ".join(sentence.split()) for sentence in split_sentences(clean(message.content))]
        answers = asked_by is not None and asked_by != message.role
        for place, text in enumerate(texts):
            yield Candidate(
                cut_at_word(text, MAX_SENTENCE_CHARACTERS), message.role, index, place, answers and place < 2
            )
        if texts:
            asked_by = message.role if is_question(texts[-1]) else None


def is_question(sentence: str) -> bool:
    return sentence.rstrip("\"'”’»)」』 ").endswith(("?", "？", "؟"))


def informativeness(text: str) -> float:
    """Score 0 … 1 for numbers, references such as codes, amounts and addresses, names, decisions and commitments."""
    names = len(_NAME.findall(text))
    score = 0.3 * bool(_NUMBER.search(text)) + 0.3 * bool(_REFERENCE.search(text))
    return min(1.0, score + 0.15 * min(names, 2) + 0.25 * bool(COMMITMENT.search(text)))


def is_politeness(text: str, terms: int) -> bool:
    """Return whether a sentence only greets, thanks or offers help, in the languages of the tables above."""
    return bool(OFFER_OF_HELP.search(text)) or (terms <= POLITE_TERMS and bool(GREETING.match(text)))


def weight(candidate: Candidate, terms: list[str], centrality: float) -> float:
    """Weigh how well a sentence represents its episode; only the order of weights is meaningful."""
    score = centrality + 0.6 * informativeness(candidate.text) + _position(candidate) + 0.15 * candidate.answers
    if candidate.role != "user" and is_question(candidate.text):
        score *= ASKS_BACK
    if len(set(terms)) < FEW_TERMS:
        score *= BRIEF
    return score * ROLE_WEIGHTS.get(candidate.role, 1.0)


def _position(candidate: Candidate) -> float:
    """Add weight to the sentences that open a conversation or a message: they introduce the topic."""
    opens_episode = 0.3 if candidate.message < 2 and candidate.role == "user" else 0.0
    return opens_episode + (0.1 if candidate.place == 0 else 0.0)


def similarity(sentences: Sequence[Sequence[str]]) -> Matrix:
    """Compute the tf-idf cosine of n lists of terms: n × n, each 0 … 1."""
    vocabulary = {term: i for i, term in enumerate(dict.fromkeys(t for terms in sentences for t in terms))}
    counts = np.zeros((len(sentences), max(1, len(vocabulary))))
    for row, terms in enumerate(sentences):
        for term, count in Counter(terms).items():
            counts[row, vocabulary[term]] = count
    vectors = counts * np.log1p(len(sentences) / np.maximum(1, (counts > 0).sum(axis=0)))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors @ vectors.T, dtype=np.float64)


def centrality(similar: Matrix) -> list[float]:
    """Compute continuous LexRank, scaled to a maximum of 1 (Erkan and Radev, "LexRank", JAIR 22, 2004)."""
    count = len(similar)
    if count == 0:
        return []
    walk = similar + 1e-9
    walk /= walk.sum(axis=1, keepdims=True)
    rank = np.full(count, 1 / count)
    for _ in range(ITERATIONS):
        rank = (1 - DAMPING) / count + DAMPING * (rank @ walk)
    return [float(value) for value in rank / rank.max()]


def diverse(weights: Sequence[float], similar: Matrix, count: int, fits: Callable[[list[int]], bool]) -> list[int]:
    """Choose up to `count` indices, best first, by maximal marginal relevance (Carbonell and Goldstein, SIGIR 1998).

    `fits`: whether a choice, its last index included, is still short enough.
    """
    chosen: list[int] = []
    left = set(range(len(weights)))
    while left and len(chosen) < count:
        best = max(sorted(left), key=lambda i: _marginal(i, weights, similar, chosen))
        left.discard(best)
        if not any(similar[best, other] >= REPETITION for other in chosen) and fits([*chosen, best]):
            chosen.append(best)
    return chosen


def _marginal(index: int, weights: Sequence[float], similar: Matrix, chosen: list[int]) -> float:
    repeated = max((float(similar[index, other]) for other in chosen), default=0.0)
    return RELEVANCE * weights[index] - (1 - RELEVANCE) * repeated
