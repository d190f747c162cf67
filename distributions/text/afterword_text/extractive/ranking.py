"""Finds the exchanges of an episode, and ranks them by how informative they are."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, groupby, islice, pairwise

from afterword_text.fences import speaker_of
from afterword_text.language import pattern, word_set
from afterword_text.messages import Message
from afterword_text.sentences import MAX_MESSAGE_CHARACTERS, both_ends, sentences_of
from afterword_text.words_of_others import Whose, parts_of, without_headers

MAX_CHARACTERS = 380
"""Longest exchange, so that a short summary has room for any of them. A single longer sentence is cut."""
LONG_TURN = 300
"""If an assistant's turn has more characters than this, only its first sentence is used."""

QUOTED = "quoted"
"""The role of those whose words a user passes on."""
Passed = tuple[str, str]
"""Words of others: their kind, and the text."""
Read = tuple[str, Sequence[Passed]]

Terms = Callable[[str], Sequence[str]]
"""Returns the stems of a text in one language, without its stop words."""

_NUMBER = re.compile(r"\d")
_CODE = re.compile(r"\w*\d(?:[\d./:-]*\d)?\w*")
_NAME = re.compile(r"(?<=[^\s.!?:。！？] )(?:[^\W\d_](?=\w*[A-Z])|[A-ZÀ-ÖØ-ÞА-ЯΑ-Ω])\w+")
POLITE_TERMS = 4
"""A greeting with more terms than this has other content too."""
FEW_TERMS = 3
BRIEF = 0.4
"""Factor for the weight of an exchange with fewer terms."""
DECIDED = 0.25
"""Weight of a word of decisions, and of a choice, which needs no such word."""
ABOUT_SELF = 0.6
"""Weight of what users say about themselves, decide or need."""
ASSISTANT = 0.7
"""Factor for the value of what an assistant says."""
OPEN = 0.3
"""Weight of a user's unanswered question."""
CORRECTION = 3.0
"""Weight of a correction, which comes before everything else: what it corrects is wrong without it."""
OPENS = 0.4
"""Weight of an episode's first exchange, because it introduces the topic."""


# They read texts in lower case: ignoring the case takes five times as long with this many alternatives.
GREETING = re.compile(
    rf"(?:\W*(?:(?:{pattern('exchanges', 'greetings')})\b|{pattern('exchanges', 'greetings_unspaced')}))+"
)  # for use with `match`, because a greeting begins a sentence
OFFER_OF_HELP = re.compile(rf"\b(?:{pattern('exchanges', 'offers')})|{pattern('exchanges', 'offers_unspaced')}")
ABOUT_ONESELF = re.compile(rf"\b(?:{pattern('exchanges', 'oneself')})(?!\w)|{pattern('exchanges', 'oneself_unspaced')}")
DECISION = re.compile(rf"\b(?:{pattern('exchanges', 'decisions')})\b|{pattern('exchanges', 'decisions_unspaced')}")
FILLERS = word_set("exchanges", "fillers")
_WEIGHTY = (ABOUT_ONESELF, DECISION)


@dataclass(frozen=True, eq=False)  # compared by identity, because no two have the same place
class Sentence:
    """A sentence and its place."""

    text: str
    role: str
    speaker: str
    """The role, and the name of who said it if it is known."""
    place: tuple[int, int]
    """The number of its turn in the episode, and its own number in the turn."""
    is_choice: bool = False
    """True if a user takes up an assistant's offer with it, as "OK, quartz then" does."""
    is_correction: bool = False
    """True if a user takes back with it what was said before, as "no, Thursday" does."""


@dataclass
class Turn:
    """The words of one speaker before another one speaks."""

    speaker: tuple[str, str | None, str, str | None]
    """Role, name, user and agent."""
    said: list[str] = field(default_factory=list)
    """All its sentences, in order."""
    statements: list[Sentence] = field(default_factory=list)
    passed_on: list[Sentence] = field(default_factory=list)
    """What the speaker quotes, forwards or pastes of others, whose speaker is "quoted" and the like."""
    questions: list[Sentence] = field(default_factory=list)
    """Open questions: those of the turn's last questioning message; earlier ones count as answered."""


Exchange = tuple[Sentence, ...]
"""Sentences that are used together or not at all: a statement, or a question with its answer."""


def turns_of(messages: Iterable[Message], terms: Terms, corrects: Callable[[str], bool]) -> list[Turn]:
    """Split a conversation into turns, without greetings and the like.

    Messages of tools and systems are used only if there are no others, and machine text that a user pastes only if
    nobody says anything.
    """
    all_messages = list(messages)
    spoken = [message for message in all_messages if message.role in ("user", "assistant")] or all_messages
    turns = _turns(spoken, terms, corrects, whose_words)
    return turns or _turns(spoken, terms, corrects, lambda message: (message.content, ()))


def _turns(
    spoken: Sequence[Message],
    terms: Terms,
    corrects: Callable[[str], bool],
    read: Callable[[Message], Read],
) -> list[Turn]:
    changes = [0, *accumulate(one.role != other.role for one, other in pairwise(spoken))]
    said: list[tuple[Message, int, list[tuple[str, bool]], Sequence[Passed]]] = []
    offered: set[str] = set()
    stated: set[str] = set()
    corrections: set[str] = set()
    for message, at in zip(spoken, changes, strict=False):
        is_user = message.role == "user"
        own, of_others = read(message)
        sentences = [
            (text, is_choice)
            for text in dict.fromkeys(sentences_of(own))  # a repeated sentence is kept once
            if (is_choice := is_user and _takes_up(offered, text, terms(text)))
            or not is_politeness(text, len(terms(text)))
            or (is_user and gives_value(text) and corrects(text))  # "Sorry, it's Monday"
        ]
        if is_user:
            corrections |= _corrections([text for text, _ in sentences], stated, terms, corrects)
        stated.update(*(terms(text) for text, _ in sentences if not is_question(text)))
        if not is_user:  # without greetings: a user who greets back has chosen nothing
            offered.update(*(terms(text) for text, _ in sentences))
        if sentences or of_others:
            said.append((message, at, sentences, of_others))
    turns: list[Turn] = []
    for speaker, group in groupby(said, key=lambda m: (m[0].role, m[0].author, m[0].user_id, m[0].agent_id)):
        turn, number = Turn(speaker), count()
        label = speaker_of(speaker[0].capitalize(), speaker[1])
        asked_at = None
        for _, at, sentences, of_others in group:
            placed = [
                Sentence(text, speaker[0], label, (len(turns), next(number)), is_choice, text in corrections)
                for text, is_choice in sentences
            ]
            turn.said += [sentence.text for sentence in placed]
            turn.statements += [sentence for sentence in placed if not is_question(sentence.text)]
            turn.passed_on += [
                Sentence(text, QUOTED, whose, (len(turns), next(number)))
                for whose, passed in of_others
                for text in sentences_of(passed)[: 1 if len(passed) > LONG_TURN else None]
            ]
            asked = [sentence for sentence in placed if is_question(sentence.text)]
            if asked or (at != asked_at and any(terms(text) for text, _ in sentences)):
                turn.questions, asked_at = asked, at
        turns.append(turn)
    return turns


def _corrections(
    sentences: Sequence[str], stated: Collection[str], terms: Terms, corrects: Callable[[str], bool]
) -> set[str]:
    """Return the sentences that correct what was stated, each with the next one: "I was wrong. It is the blue one."."""
    texts: set[str] = set()
    for text, following in pairwise((*sentences, "")):
        if (gives_value(text) or any(stem in stated for stem in terms(text))) and corrects(text):
            texts.update((text, following))
    return texts


def whose_words(message: Message) -> Read:
    """Return the speaker's own words, and those of others with their kind; machine text is neither."""
    content = message.content
    if message.role != "user":
        return content, ()
    if len(content) > MAX_MESSAGE_CHARACTERS:
        content = "\n".join(both_ends(content, MAX_MESSAGE_CHARACTERS))
    own, of_others = "", []
    for part in parts_of(content):
        words = content[part.start : part.end]
        if part.whose is Whose.OWN or part.is_inline:
            own += words
        elif part.whose is not Whose.MACHINE and (body := without_headers(words)):
            of_others.append((str(part.whose), body))
            own += "\n"
    return own, of_others


def _takes_up(offered: Collection[str], text: str, stems: Sequence[str]) -> bool:
    """Return whether a short statement is mostly made of words that the assistant has used, as a choice is.

    A sentence that continues after a greeting without a comma, such as "Thanks for the tips", is not a choice.
    """
    greeting = GREETING.match(text := text.lower())
    if greeting and text[greeting.end() :][:1] not in ",.!":
        return False
    named = sum(stem in offered for stem in stems)
    return 0 < len(stems) <= 2 * named and len(stems) <= POLITE_TERMS and not is_question(text)


def exchanges_of(turns: Sequence[Turn], terms: Terms) -> list[Exchange]:
    """List the exchanges that can stand alone, in order."""
    return [exchange for at in range(len(turns)) for exchange in _exchanges(turns, at, terms)]


def _exchanges(turns: Sequence[Turn], at: int, terms: Terms) -> Iterator[Exchange]:
    turn = turns[at]
    is_long = turn.speaker[0] != "user" and sum(map(len, turn.said)) > LONG_TURN
    answered = _with_answer(turns, at - 1, terms) if at > 0 and turns[at - 1].questions else ()
    for sentence in turn.statements[: 1 if is_long else None]:
        if len(sentence.text) > MAX_CHARACTERS or not any(map(str.isalpha, "".join(terms(sentence.text)))):
            continue
        if sentence not in answered or (turn.speaker[0] == "user" and len(terms(sentence.text)) > FEW_TERMS):
            yield (sentence,)
    yield from ((sentence,) for sentence in turn.passed_on if len(sentence.text) <= MAX_CHARACTERS)
    if turn.questions and not is_long and (asked := _with_answer(turns, at, terms)):
        yield asked  # a question at the end of a long answer only offers to say more


def _with_answer(turns: Sequence[Turn], at: int, terms: Terms) -> Exchange:
    """Return a turn's last question with its answer; nothing if the answer is too long or about something else.

    If a question is answered by a question, the answer to that one follows. A brief answer, such as "Yes", comes with
    the sentence after it.
    """
    pair = turns[at].questions[-1:]
    for turn in turns[at + 1 : at + 3]:
        if is_question(pair[-1].text):
            is_brief = any(len(terms(said.text)) < FEW_TERMS for said in turn.statements[:1])
            pair = [*pair, *(turn.statements[: 1 + is_brief] or turn.questions[-1:])]
    if sum(len(sentence.text) for sentence in pair) > MAX_CHARACTERS or _codes_differ(pair[0].text, pair[-1].text):
        return ()
    is_open = is_question(pair[-1].text) and pair[-1].place[0] < len(turns) - 1
    return () if is_open else tuple(pair)


def _codes_differ(question: str, answer: str) -> bool:
    """Return whether the answer names other codes of the same form: "4711-22" and "8830-07" differ."""
    if not all(map(_NUMBER.search, (question, answer))):  # which takes a fraction of the time
        return False
    asked, told = (set(_CODE.findall(text)) for text in (question, answer))
    forms = {_NUMBER.sub("0", code) for code in asked if sum(map(str.isdigit, code)) >= FEW_TERMS}
    return asked.isdisjoint(told) and any(_NUMBER.sub("0", code) in forms for code in told)


def has_choice(exchange: Exchange) -> bool:
    """Return whether a user chooses or corrects something, which takes few words, and words that were there before."""
    return any(sentence.is_choice or sentence.is_correction for sentence in exchange)


def has_correction(exchange: Exchange) -> bool:
    return any(sentence.is_correction for sentence in exchange)


def gives_value(text: str) -> bool:
    """Return whether a sentence has a number, or a name after its first word."""
    return bool(_NUMBER.search(text) or _NAME.search(text))


def is_question(sentence: str) -> bool:
    return sentence.rstrip("\"'”’»)」』 ").endswith(("?", "？", "؟"))


def informativeness(text: str) -> float:
    """Score a text by its numbers, names and words of decisions."""
    names = sum(1 for _ in islice(_NAME.finditer(text), 2))
    decisions = sum(1 for _ in islice(DECISION.finditer(text.lower()), 2))
    return 0.3 * bool(_NUMBER.search(text)) + 0.15 * names + DECIDED * decisions


def is_politeness(text: str, terms: int) -> bool:
    """Return whether a sentence only greets, thanks or offers help, in the languages of `vocabulary.toml`."""
    text = text.lower()
    if OFFER_OF_HELP.search(text):
        return True
    greeting = GREETING.match(text)
    if greeting is None or terms > POLITE_TERMS or _NUMBER.search(text):
        return False
    rest = text[greeting.end() :]
    says_more = terms >= FEW_TERMS or is_question(text) or any(says.search(rest) for says in _WEIGHTY)
    return "," not in rest or not says_more


def weight(exchange: Exchange, terms: Collection[str]) -> float:
    """Return how informative an exchange is; only the order of weights is meaningful.

    What users decide or say about themselves outranks what assistants explain.
    """
    score = 0.0
    for sentence in exchange:
        told = informativeness(sentence.text) + DECIDED * sentence.is_choice
        if sentence.role != "user":
            told *= ASSISTANT
        elif sentence.is_choice or (
            not is_question(sentence.text) and any(says.search(sentence.text.lower()) for says in _WEIGHTY)
        ):
            told += ABOUT_SELF
        score = max(score, told)
    if exchange[0].place[0] == 0:
        score += OPENS
    if exchange[0].role == "user" and all(is_question(sentence.text) for sentence in exchange):
        score += OPEN
    if has_correction(exchange):
        score += CORRECTION
    is_brief = len(set(terms)) < FEW_TERMS and not has_choice(exchange)
    return score * (BRIEF if is_brief else 1.0)
