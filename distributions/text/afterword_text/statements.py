"""Finds what users say about themselves, without an LLM. Pure functions.

Only a user's own words count (`words_of_others.py`), outside of games, stories and examples (`Frames`). A small linear
model, which `tools/statements.py` makes of labelled sentences, tells which clauses say something that lasts. Rules of
`vocabulary.toml` find the values that may change, such as a name or a city, and what ends an earlier statement.
"""

import re
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from typing import NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from afterword_text.extractive.ranking import is_question
from afterword_text.language import VOCABULARY, word_set
from afterword_text.messages import FactKind, FactStatus, Message, PersonalFact
from afterword_text.phrases import (
    PHRASES,
    corrected,
    correction_in,
    form_of,
    only_value,
    pattern_of,
    value_forms,
    with_pieces,
)
from afterword_text.sentences import KEPT_MESSAGES, sentences_of
from afterword_text.subjects import subject_of
from afterword_text.visible import ELLIPSIS
from afterword_text.word_model import KEPT_TEXTS, is_place, probabilities
from afterword_text.words_of_others import own_words

MOST_FACTS = 40
"""Only this many of an episode's facts are kept, the last ones."""
STATEMENT_CHARACTERS = 240
"""A longer clause is no plain statement."""
SENTENCE_CHARACTERS = 1000
CORRECTION_CHARACTERS = 120
GREETINGS = 2
"""People introduce themselves in one of this many sentences at the beginning of a message."""
CERTAIN = 0.6
"""Least probability that a clause says something that lasts; chosen on sentences that the model had not seen."""
ENDED = 0.4
"""Least probability that a clause ends an earlier statement."""
VERY_CERTAIN = 0.7
"""The same for a clause that denies something, or has no word of the first person."""
IDIOM = 0.95
"""Least probability that a clause which looks like a job says nothing that lasts."""
KINDS = get_args(FactKind)
CLASSES = *KINDS, "ended", "-"
"""What the model tells apart. The last two are what ends an earlier statement, and everything else."""
VALUES = "home_city", "job", "age", "marital_status", "-"
"""Attributes with one value at a time that the model finds, and everything else."""
PRESENT = "home_city", "job", "employer", "age", "marital_status", "number_of_children"
"""Attributes that what is only planned gives no value for."""
FRAMES = "text", "game", "-"
"""What a sentence or a label begins: somebody else's text, or one without an author; a part that somebody plays."""
FRAMED, FRAMED_BEFORE = 0.3, 0.9
"""Least probability that a sentence begins one of these, and that the last one means what stands before it."""
LIKELY = 0.7
"""Least probability of an attribute."""
MOST_PARTS = 3
MOST_HEARD = 8
"""A correction is compared with this many messages before it."""
SIMILAR = 0.6
"""A name is corrected by one that is spelled much alike."""


class Statement(NamedTuple):
    """A clause that says something about its speaker."""

    text: str
    kind: FactKind
    attribute: str | None = None
    status: FactStatus = "stated"


Heard = tuple[str, Callable[[], Sequence[Statement]]]
"""A text of a user, and what finds the statements in it."""


class Rule(NamedTuple):
    """What a clause with this beginning says about its speaker. It fits no clause in another language."""

    kind: FactKind
    attribute: str | None
    """Name of the attribute, unless the pattern's group `attribute`, `plan` or `number` names it."""
    status: FactStatus
    pattern: re.Pattern[str]
    """A number ends the names of its groups, because several may be of one kind."""


def _rules(name: str) -> Iterator[Rule]:
    for line in re.sub(r"\n +", "", VOCABULARY["first_person"][name]).splitlines():
        if not line.startswith("#"):
            kind, attribute, pattern = line.split(None, 2)
            status: FactStatus = "implied" if attribute.endswith("~") else "stated"
            named = attribute.rstrip("~")
            numbered = re.sub(r"(?<=\(\?P<)\w+", lambda name: f"{name[0]}_{name.start()}", with_pieces(pattern))
            compiled = re.compile(numbered, re.IGNORECASE)
            yield Rule(cast("FactKind", kind), None if named == "-" else named, status, compiled)


def _named(fits: re.Match[str]) -> dict[str, str]:
    """Return what the groups of a rule's pattern found, by what they are of."""
    return {name.partition("_")[0]: said for name, said in fits.groupdict().items() if said is not None}


def _in_small_letters(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that finds in `text.lower()` what any of these finds in a text when it ignores the case.

    It takes a fraction of the time, because the branches that begin with another letter are skipped.
    """
    nameless = re.sub(r"\(\?P<\w+>", "(?:", "|".join(patterns))
    return re.compile(re.sub(r"(?<!\\)[A-ZÀ-Þ]", lambda letter: letter[0].lower(), nameless))


class _Caseless:
    """A pattern that ignores the case. It is fast where it does not match, as in most texts."""

    def __init__(self, *patterns: str) -> None:
        self._patterns = patterns
        self._small = [_in_small_letters([pattern]) for pattern in patterns]

    @cached_property
    def exact(self) -> re.Pattern[str]:
        return re.compile("|".join(self._patterns), re.IGNORECASE)

    def search(self, text: str) -> re.Match[str] | None:
        small = text.lower()
        return self.exact.search(text) if any(pattern.search(small) for pattern in self._small) else None


RULES = tuple(_rules("rules"))
ANYWHERE = tuple(_rules("anywhere"))
"""Rules for what a sentence takes for granted, even a question."""
_ANY_RULE, _ANY_ANYWHERE = (_in_small_letters(rule.pattern.pattern for rule in rules) for rules in (RULES, ANYWHERE))
_COMMA = re.compile(r",(?!\d)")
_HYPOTHETICAL = _Caseless(pattern_of("hypothetical"))
_REPORTED = _Caseless(pattern_of("reported"))
_IRONY = _Caseless(pattern_of("irony"))
_ENDING = _Caseless(pattern_of("ending"))
_OUTCOMES = ["".join(one["ends"].split("\n")) for one in VOCABULARY["first_person"]["outcomes"]]
_ALSO_ENDS = _Caseless(pattern_of("also_ends"), *_OUTCOMES)
_ONLY_ENDS = _Caseless(pattern_of("only_ends"))
_ONESELF = _Caseless(pattern_of("oneself"))
_FRAME = _Caseless(pattern_of("frame"))
_FRAME_ENDS = _Caseless(pattern_of("frame_ends"))
_ACCEPTED = _Caseless(pattern_of("frame_ends"), pattern_of("task_ends"))
PERSISTENT_FRAMES = (
    (_Caseless(pattern_of("persistent_frame")), _FRAME_ENDS),
    (_Caseless(pattern_of("task_frame")), _ACCEPTED),
)
"""What begins a frame that goes on in later messages, and what ends it there."""
_LOOSE_END = re.compile(r"(?<=\w\w)[.!]\s+(?=[a-zß-ÿ])|(?:\.{2,}|(?<=\w)…)\s+|(?<=\w\w\?)\s+(?=[a-zß-ÿ])")
"""Where people end a sentence who write in small letters."""
_SENTENCE_OR_LABEL = re.compile(r"(?:(?! [-–—]+ )(?:[^\n.!?…:;]|[.:](?=\w)))+(?:[\n.!?…:;]| [-–—]+ )*")
_LETTER = re.compile(r"\w")
_MISTAKEN = re.compile(with_pieces("{mistaken}"), re.IGNORECASE)
_COMMON_NAMES = re.compile(with_pieces("{common_names}").replace("\n", ""), re.IGNORECASE)
_NOUN = re.compile(r"(?:an?|eine?[nmr]?|une?|un[ao]?|uma?|een|en|et) [^\W\d_]+", re.IGNORECASE)
_PROPER = re.compile(r"(?<=\w\s)[A-ZÀ-Þ][\w'’-]*(?: [A-ZÀ-Þ][\w'’-]*)*")
_FORGOTTEN = [
    (name, re.compile(words, re.IGNORECASE)) for name, words in VOCABULARY["first_person"]["forgotten_attributes"]
]
_NOT_PLACES = word_set("first_person", "not_places")
_NOT_NAMES = word_set("first_person", "not_names")
_ELLIPTICAL = [
    (re.compile(rf"\b(?:{word})\b", re.IGNORECASE), subject)
    for word, subject in VOCABULARY["first_person"]["elliptical"].items()
]


def first_person(messages: Sequence[Message], before: Sequence[Message] = ()) -> tuple[PersonalFact, ...]:
    """Return what users say about themselves, in order and each once. Linear in the messages.

    `before` are the messages before the episode: a game that began there may still go on, and "forget that" may mean
    the last of them.
    """
    facts: dict[tuple[str, str, str | None, str], PersonalFact] = {}
    texts = own_texts((*before, *messages))
    said_before: dict[str, Callable[[], Sequence[Statement]]] = {}
    heard: defaultdict[str, deque[Heard]] = defaultdict(partial(deque, maxlen=MOST_HEARD))
    answers: deque[Heard] = deque(maxlen=MOST_HEARD)
    for place, message in enumerate((*before, *messages)):
        if message.role != "user":
            answers.appendleft((message.content, tuple))
            continue
        user = message.user_id
        text, earlier = texts[message.id], said_before.get(user, tuple)
        rest = _without_request(text)
        if rest or not text:  # "forget that", said again, means the same once more
            said_before[user] = partial(statements, rest)
        say: Callable[[], Sequence[Statement]] = partial(_said, text, rest, earlier)
        if right := _corrected(text, heard[user], answers):
            say = said_before[user] = right.copy
        heard[user].appendleft((text, say))
        for statement in say() if place >= len(before) else ():
            fact = PersonalFact(
                statement=statement.text,
                kind=statement.kind,
                attribute=statement.attribute,
                status=statement.status,
                about=None,
                user_id=user,
                said_by="user",
                message_ids=(message.id,),
            )
            facts.setdefault((user, statement.text.casefold(), statement.attribute, statement.status), fact)
    return tuple(facts.values())[-MOST_FACTS:]


def _corrected(text: str, heard: Collection[Heard], answers: Iterable[Heard]) -> list[Statement]:
    """Return what a text says that corrects a value of an earlier statement: "no, I meant Bern, not Berlin".

    The value is looked for in the last text that names it, which may be about something else. A bare "tea, not coffee"
    means nothing before the last message, and no preference; neither does "sorry, Bern", which means the value like it.
    What nobody named may be of an earlier conversation, which the profile knows. Return nothing if none is corrected.
    """
    sentences = sentences_of(text)
    for at, sentence in enumerate(sentences):
        if len(sentence) > CORRECTION_CHARACTERS or not (named := correction_in(sentence)):
            continue
        begin, rest = " ".join(sentences[:at]), " ".join(sentences[at + 1 :])
        texts: list[Heard] = [(begin, partial(statements, begin)), *heard]
        new, old = named["new"], named.get("old") or _value_like(named["new"], texts[:2])
        is_sorry = _MISTAKEN.search(named["lead"]) is not None
        is_late = not (begin or heard) and (is_sorry or "old" in named)  # it corrects an earlier conversation
        if old is None and is_late and form_of(named):
            return [Statement(sentence, "event", None, "ended"), *statements(rest)]
        if old is None:
            continue
        texts = [*texts, *answers] if named["lead"] else texts[:2]
        say = next((say for known, say in texts if corrected(known, old, new)), None)
        if say is None and (is_sorry or (named["lead"] and is_late)):
            return [*statements(begin), Statement(sentence, "event", None, "ended"), *statements(rest)]
        said = [(one, corrected(one.text, old, new)) for one in (say() if say else ()) if one.status != "ended"]
        right = [(one, one._replace(text=text)) for one, text in said if text]
        if "old" not in named:  # "sorry, a typo" is no pet
            right = [pair for pair in right if any(one.status != "ended" for one in statements(pair[1].text))]
        if not right or (not named["lead"] and right[0][0].kind == "preference"):
            return []
        # the text repeats the statement, because that is how the profile knows it
        wrong = [Statement(f"{sentence} ({one})", "event", None, "ended") for one in {one.text: 0 for one, _ in right}]
        return [*statements(begin), *wrong, *(one for _, one in right), *statements(rest)]
    return []


def _value_like(new: str, heard: Iterable[Heard]) -> str | None:
    """Return the number, day, noun, place or name like another in the last text that has any; None for several."""
    if form := next((each for each in (*value_forms(), _NOUN) if each.fullmatch(new)), None):
        return only_value(form, (known for known, _ in heard))
    may_be_place = is_place(new) and not _COMMON_NAMES.fullmatch(new)
    for known, say in heard:
        names = _PROPER.findall(known)
        if may_be_place:
            values = [name for name in names if is_place(name)]
        else:
            gives_name = new[0].isupper() and _is_name(new) and any(one.attribute == "name" for one in say())
            values = names if gives_name else []
        if values:
            return str(values[0]) if len(values) == 1 else None
    return None


def _said(text: str, rest: str, before: Callable[[], Sequence[Statement]]) -> Sequence[Statement]:
    """Return what a text says. Only if it says "forget that" beside the `rest`, this asks what was said before."""
    request = _request_to_forget(text)
    if request is None:
        return statements(text)
    words = request[0].strip()
    if subject := request.groupdict().get("subject"):
        found = [name for name, named in _FORGOTTEN if named.search(subject)]
        ended = [Statement(words, "event", name, "ended") for name in found or [None]]
    else:  # the text repeats the statement, because that is how the profile knows it
        ended = [one._replace(text=f"{words} ({one.text})", status="ended") for one in before()]
    return [*ended, *statements(rest)]


def _without_request(text: str) -> str:
    request = _request_to_forget(text)
    return text if request is None else f"{text[: request.start()]}{text[request.end() :].lstrip(' .,!?')}"


@lru_cache(maxsize=KEPT_MESSAGES)
def _request_to_forget(text: str) -> re.Match[str] | None:
    return PHRASES.forget_that.search(text) or PHRASES.forget_subject.search(text)


def sentences_or_labels(text: str) -> Iterator[re.Match[str]]:
    """Find what ends with a line, a colon or a sentence, and has a letter or a digit."""
    return (piece for piece in _SENTENCE_OR_LABEL.finditer(text) if _LETTER.search(piece[0]))


@lru_cache(maxsize=KEPT_MESSAGES)  # the next episode shows an episode's last messages again
def outside_of_frames(text: str, inside: _Caseless | None = None) -> tuple[str, _Caseless | None]:
    """Return the text without what is said inside a game, a story or an example, and what will end one that goes on.

    `inside` is what ends the one that an earlier message began.
    """
    if inside:
        if not (ends := inside.search(text)):
            return "", inside
        text = text[ends.end() :]
    for begin, end in PERSISTENT_FRAMES:
        if _frames(begin, text):
            ends = _FRAME_ENDS.search(text)
            return (text[ends.end() :], None) if ends else ("", end)
    begun = list(_frames_begun(text))
    if any(frame == "game" for frame, _ in begun):
        return "", _FRAME_ENDS
    text = begun[0][1] if begun else text
    labelled = (match.start() for match in PHRASES.label.finditer(text) if not PHRASES.own_label.match(match["label"]))
    return ("" if _frames(_FRAME, text) else text[: next(labelled, None)]), None


def _frames_begun(text: str) -> Iterator[tuple[str, str]]:
    """Yield the kind of each frame that a sentence or a label begins, and the text outside of it."""
    said_to = len(text.rstrip())
    for piece in sentences_or_labels(text):
        odds = probabilities("frames", piece[0])[:-1]
        goes_on = ELLIPSIS in piece[0] or piece.end() < said_to
        least = FRAMED if goes_on or piece.start() == 0 else FRAMED_BEFORE
        # in few words, a request to forget and a correction look like a request for a text
        said = piece[0].strip()
        asks = _request_to_forget(said) or PHRASES.corrected.match(said) or _ENDING.exact.match(said)
        asks = asks or PHRASES.asks_for_any.match(said)
        if odds.max() >= least and not asks:
            yield FRAMES[int(odds.argmax())], text[: piece.start()] if goes_on else ""


def _frames(frame: _Caseless, text: str) -> bool:
    """Return whether a text begins a frame, other than by what its author does for a living or for fun."""
    return bool(frame.search(text) and frame.search(PHRASES.own_trade.sub("", text)))


def own_texts(messages: Sequence[Message]) -> dict[str, str]:
    """Return what each user says in their own words outside of games, stories and examples, by message id."""
    inside: dict[str, _Caseless | None] = {}
    texts: dict[str, str] = {}
    for message in messages:
        if message.role == "user":
            text, inside[message.user_id] = outside_of_frames(own_words(message.content), inside.get(message.user_id))
            texts[message.id] = text
    return texts


def assertions(text: str) -> list[str]:
    """Return the clauses of a text that assert something, without questions, reports, jokes and suppositions."""
    return [
        asserted
        for sentence in map(_said_oneself, sentences_of(text))
        for clause in _clauses(sentence)
        if not PHRASES.asks.match(clause) and (asserted := _asserted(clause))
    ]


def is_denial(clause: str) -> bool:
    """Return whether a clause says that something is not so, or no longer."""
    return bool(PHRASES.negated.search(clause) or _ENDING.search(clause))


def says_end(statement: str) -> bool:
    """Return whether a statement says that something is no longer so."""
    return bool(_ENDING.search(statement))


@lru_cache(maxsize=KEPT_MESSAGES)
def statements(text: str) -> tuple[Statement, ...]:
    """Return what a text in its author's own words says about the author, in order."""
    by_text: dict[tuple[str, str | None, str], Statement] = {}
    parts = (part for sentence in sentences_of(text) for part in _LOOSE_END.split(sentence))
    sentences = (each for part in parts for each in _told_anew(part))
    asked = ""
    for number, sentence in enumerate(sentences):
        own = _said_oneself(sentence)
        found = [*_statements(own, is_first=number < GREETINGS)]
        for statement in found if any(each.status != "ended" for each in found) else _answers(own, asked) or found:
            told = _with_question(statement, asked or (PHRASES.asks.match(own) and own.partition(statement.text)[0]))
            by_text.setdefault((told.text, told.attribute, told.status), told)
        asked = sentence if is_question(sentence) else ""
    return tuple(by_text.values())


def _answers(sentence: str, asked: str) -> list[Statement]:
    """Return a sentence without a clause about its author that says what the author's question before it is about."""
    is_own = PHRASES.asked_own.search(asked) and PHRASES.about_own.match(sentence)
    return [Statement(sentence, "relation")] if asked and (is_own or PHRASES.about_asked.match(sentence)) else []


def _with_question(statement: Statement, asked: str | None) -> Statement:
    """Return a statement together with the question before it if only that says what the statement is about."""
    both = f"{asked or ''} {statement.text}".replace("  ", " ")
    points_back = asked and statement.status != "ended" and PHRASES.points_back.search(statement.text)
    return statement._replace(text=both) if points_back and len(both) <= STATEMENT_CHARACTERS else statement


def _told_anew(sentence: str) -> Iterator[str]:
    """Yield the sentence, or the two that "I no longer live in Rome but in Oslo" stands for."""
    yield sentence
    if not (fits := PHRASES.instead.match(sentence)) or not _ENDING.search(fits["old"]):
        return
    positive = PHRASES.je_elided.sub("j'", PHRASES.more.sub("", _positive(fits["old"]))).rstrip(" ,")
    words, new = positive.split(), fits["new"].split()
    begin = max((at for at, word in enumerate(words) if word == new[0]), default=max(len(words) - len(new), 1))
    replaced = " ".join((*words[:begin], *new))
    if value_of(replaced) or any(_ruled(replaced, is_first=False)):
        yield replaced


def _positive(clause: str) -> str:
    """Return a clause without the words that deny it."""
    return " ".join(PHRASES.negated.sub(" ", _ENDING.exact.sub(" ", clause)).split())


def _said_oneself(sentence: str) -> str:
    """Return what a sentence says before "and my mother says …"; "" if all of it is somebody else's, or a joke."""
    if len(sentence) > SENTENCE_CHARACTERS or sentence.startswith(("[", "//")) or _IRONY.search(sentence):
        return ""
    own = sentence[: report.start()] if (report := _REPORTED.search(sentence)) else sentence
    return own if report is None or PHRASES.before_report.search(own) else ""


def _asserted(clause: str) -> str:
    """Return what a clause says before it supposes something about another subject; "" if it only supposes."""
    supposition = _HYPOTHETICAL.search(clause)
    if supposition is None or supposition["wish"]:
        return clause
    before, _, subject = clause[: supposition.start()].rpartition(", ")
    return before if subject.strip() else ""


def _statements(sentence: str, is_first: bool) -> Iterator[Statement]:
    may_grant = _ANY_ANYWHERE.search(sentence.lower()) and not PHRASES.supposes.search(sentence)
    granted = [
        Statement(fits[0].strip(" ,"), rule.kind, _attribute(rule, fits), rule.status)
        for rule in (ANYWHERE if may_grant else ())
        if (fits := rule.pattern.search(sentence)) and _has_right_values(fits)
    ]
    clauses = [each for each in _clauses(sentence) if len(each) <= STATEMENT_CHARACTERS and re.search(r"\w", each)]
    clauses = [each for each in clauses if ELLIPSIS not in each]  # it stands for the words of others
    said = sentence[: sentence.find(clauses[-1]) + len(clauses[-1])] if clauses else ""
    subject = next((each for word, each in _ELLIPTICAL if word.search(sentence)), "")
    said_now = [each for clause in _supposed_apart(sentence, clauses) for each in _stated(clause, subject, is_first)]
    stated = [_as_planned(each) for each in said_now]
    is_end = _ALSO_ENDS.search(said) or (
        all(each.status != "ended" for each in stated)
        and any(probabilities("statements", each)[len(KINDS)] >= ENDED for each in clauses)
    )
    is_now = not (PHRASES.others_end.match(said) or _HYPOTHETICAL.search(said) or PHRASES.ahead.search(said))
    if is_end and is_now:
        stated.insert(0, Statement(said, "event", value_of(said), "ended"))
    told = [each.text for each in stated if each.status != "ended"]
    yield from (each for each in granted if each.attribute or not any(each.text in one for one in told))
    is_contrast = PHRASES.contrast.search(said) and not _ONESELF.search(said)
    yield from (each for each in stated if each.status != "ended" or not is_contrast)


def _as_planned(statement: Statement) -> Statement:
    """Return a statement as a plan if it gives a value that is still to come."""
    is_planned = statement.attribute in PRESENT and statement.status != "ended" and PHRASES.ahead.search(statement.text)
    return statement._replace(kind="plan", attribute=None) if is_planned else statement


def _supposed_apart(sentence: str, clauses: Sequence[str]) -> Iterator[str]:
    """Yield the clauses that suppose nothing; what is linked to a supposition belongs to it."""
    is_supposed = False
    for before, clause in pairwise(("", *clauses)):
        one_word_between = rf"{re.escape(before)}\s+[^\W\d_]+\s+{re.escape(clause)}"
        asserted = "" if is_supposed and re.search(one_word_between, sentence) else _asserted(clause)
        is_supposed = asserted != clause
        if asserted:
            yield asserted


def _stated(clause: str, subject: str, is_first: bool) -> Iterator[Statement]:
    """Yield what a clause says; if it lacks its subject, that of its sentence is `subject`."""
    if name := PHRASES.corrected_name.search(clause):
        if _is_corrected(name["is"] or name["is2"], name["not"] or name["not2"]):
            yield Statement(clause, "identity", "name")
        return
    main = PHRASES.relative.split(clause, maxsplit=1)[0]
    ending = _ENDING.search(main)
    if ending or PHRASES.negated.search(_beginnings(main)[0]):
        positive = _positive(clause)
        ruled = next(_ruled(positive, is_first=False), None)
        if ruled or ending or kind_of(positive):
            yield Statement(clause, "event", ruled.attribute if ruled else value_of(clause), "ended")
        is_habit = not (ruled or ending or PHRASES.be_negated.search(main))
        if not (PHRASES.lasting_negation.search(clause) or (is_habit and _is_sure(clause))):
            return
    values = [*_ruled(clause, is_first)] or [*_ruled(f"{subject} {clause}" if subject else "", is_first)]
    if kind_of(clause) == "constraint" or _is_idiom(clause):  # "soy alérgico", "ik ben de sigaar": they look like jobs
        values = [statement for statement in values if statement.attribute != "job"]
    yield from (statement._replace(text=clause) for statement in values)
    if not values and not _ONLY_ENDS.search(clause):
        yield from _found_by_model(clause)


def _found_by_model(clause: str) -> Iterator[Statement]:
    if PHRASES.asks_to_forget.match(clause):
        return
    is_new = kind_of(clause, or_ended=True) is not None and PHRASES.new.search(clause) is not None
    if kind := kind_of(clause, or_ended=is_new):
        may_be_own = (
            _is_sure(clause) and " " in clause and not (PHRASES.asks.match(clause) or PHRASES.of_others.match(clause))
        )
        if _ONESELF.search(clause) or may_be_own:
            value = value_of(clause)
            yield Statement(clause, kind, value, "stated" if is_new or not value else "implied")


def _clauses(sentence: str) -> Iterator[str]:
    """Split a sentence before each subject in the first person, without what it asks and the words that lead in."""
    starts = [0, *(match.end() for match in PHRASES.clause.finditer(sentence)), len(sentence)]
    pieces = [sentence[start:end] for start, end in pairwise(starts)]
    if "¿" in sentence:
        sentence = sentence.partition("¿")[0]
        pieces = [sentence[start:end] for start, end in pairwise(starts)]
    elif is_question(sentence) or PHRASES.openly_asks.match(sentence):
        # from the first piece that begins as questions do, or from the last comma
        asked = next((at for at, piece in enumerate(pieces) if PHRASES.asks.match(piece.strip())), None)
        last = list(_COMMA.finditer(sentence))[-1:]
        if asked is None and last and not PHRASES.tag.fullmatch(sentence, last[0].end()):
            yield from _clauses(sentence[: last[0].start()])
        pieces = [] if asked is None else [*pieces[:asked], *_told_behind(sentence)]
    for at in range(len(pieces) - 1, 0, -1):
        if PHRASES.only_subject.fullmatch(pieces[at - 1]):  # "my wife and I"
            pieces[at - 1 : at + 1] = ["".join(pieces[at - 1 : at + 1])]
    who, is_linked = None, False
    for piece in pieces:
        clause = PHRASES.link_behind.sub("", PHRASES.lead_in.sub("", piece.strip(), count=1))
        if (
            who and is_linked and clause and not PHRASES.subject_first.match(clause)
        ):  # "my sister is ill and has two children"
            clause = f"{who[0]} {clause}"
        else:
            who = PHRASES.somebody.match(clause) or PHRASES.other.match(clause)
            who = who if who and subject_of(clause).others else None
        is_linked = PHRASES.linked.search(piece) is not None
        yield clause


def _told_behind(sentence: str) -> list[str]:
    """Return what a sentence says behind its last comma if that says why its author asks what stands before."""
    behind = sentence.rpartition(",")[2]
    is_told = not is_question(sentence) and PHRASES.own_present.match(behind)
    return [behind] if is_told and not PHRASES.supposes.search(sentence) and _is_sure(behind.strip()) else []


def ruled_attributes(sentence: str) -> set[str]:
    """Return the attributes that the rules find in a sentence."""
    found = (one.attribute for clause in _clauses(sentence) for one in _ruled(clause, is_first=True))
    return {attribute for attribute in found if attribute}


def _ruled(clause: str, is_first: bool) -> Iterator[Statement]:
    begin = when.end() if (when := PHRASES.begins_when.match(clause)) else 0
    for rule in RULES if _ANY_RULE.match(clause.lower(), begin) else ():
        fits = rule.pattern.match(clause, begin)
        if fits is None or (rule.status == "implied" and rule.attribute == "name" and not is_first):
            continue
        if _has_right_values(fits):
            yield Statement(clause, rule.kind, _attribute(rule, fits), rule.status)


def _has_right_values(fits: re.Match[str]) -> bool:
    """Return whether what a rule found has a name or a place where it should; after a weak phrase, a known place."""
    named = _named(fits)
    name, place = named.get("called"), named.get("place")
    if name and not _is_name(name):
        return False
    if not place or _is_no_place(place):
        return not place
    return named.get("weak") is None or is_place(place)


def _is_no_place(name: str) -> bool:
    """Return whether a name is that of a product, a firm, or anything else that is no place."""
    return any(word.casefold() in _NOT_PLACES or PHRASES.product.match(word) for word in re.findall(r"[\w'’-]+", name))


def _attribute(rule: Rule, fits: re.Match[str]) -> str | None:
    named = _named(fits)
    for group, form in (("attribute", "{}"), ("plan", "plan {}"), ("number", "number of {}")):
        if named.get(group):
            return re.sub(r"\W+", "_", form.format(named[group]).casefold().replace("our", "or")).strip("_")
    return rule.attribute


def _is_name(text: str) -> bool:
    words = re.findall(r"[\w'’-]+", text)
    return bool(words) and not any(word.casefold() in _NOT_NAMES for word in words)


def _is_corrected(name: str, other: str) -> bool:
    alike = SequenceMatcher(None, name.casefold(), other.casefold()).ratio() >= SIMILAR
    return alike and _is_name(name) and not is_place(name)


@lru_cache(maxsize=KEPT_TEXTS)
def kind_of(clause: str, *, or_ended: bool = False) -> FactKind | None:
    """Return the kind of what a clause says about its speaker; None if it says nothing that lasts.

    With `or_ended`, it may also be what has just begun, which the model takes for the end of something else.
    """
    odds = max((probabilities("statements", part) for part in _beginnings(clause)), key=_lasting)
    lasting = _lasting(odds) + or_ended * float(odds[len(KINDS)])
    return KINDS[int(odds[: len(KINDS)].argmax())] if lasting >= CERTAIN else None


def _is_idiom(clause: str) -> bool:
    """Return whether a clause says nothing that lasts, nor that something is new."""
    return probabilities("statements", clause)[-1] >= IDIOM and not PHRASES.new.search(clause)


def _is_sure(clause: str) -> bool:
    return _lasting(probabilities("statements", clause)) >= VERY_CERTAIN


def _lasting(probabilities: NDArray[np.float64]) -> float:
    return float(probabilities[: len(KINDS)].sum())


def _beginnings(clause: str) -> list[str]:
    """Return the parts of a clause from its beginning, the shortest first: the fact often stands before the rest."""
    ends = [match.start() for match in PHRASES.part_ends.finditer(clause)]
    return [clause[:end] for end in (*ends[:MOST_PARTS], len(clause)) if clause[:end].count(" ") > 1] or [clause]


def value_of(clause: str) -> str | None:
    """Return the attribute whose value for its speaker a clause gives or takes, in any words; None if there is none."""
    if subject_of(clause).others:
        return None
    found = (probabilities("values", with_one_place(part)) for part in _beginnings(clause))
    best = max(found, key=lambda one: float(one[:-1].max()))
    value = VALUES[int(best[:-1].argmax())] if best[:-1].max() >= LIKELY else None
    moved = PHRASES.moved_to.search(clause) if value == "home_city" else None
    return None if moved and _is_no_place(moved["place"]) else value


def with_one_place(clause: str) -> str:
    """Return the clause with the same name for each known place, so that one teaches what another means."""
    return _PROPER.sub(lambda name: "Paris" if is_place(name[0]) else name[0], clause)
