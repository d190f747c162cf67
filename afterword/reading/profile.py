"""A profile: what a user's episodes say about them. It is computed from stored facts, so it is always current. Pure."""

import re
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import datetime, timedelta
from difflib import SequenceMatcher
from functools import cache, lru_cache
from itertools import chain
from operator import attrgetter, itemgetter
from typing import NamedTuple

from afterword.schemas import FactKind
from afterword.schemas.base import Model, Time
from afterword.schemas.messages import Role
from afterword.streams.stores.episodes import FactOfUser
from afterword_text.fences import INDENTATION, quotation
from afterword_text.language import VOCABULARY
from afterword_text.phrases import PHRASES, corrected, correction_in, form_of, only_value, with_pieces
from afterword_text.subjects import NAME_WEIGHT, ONE, numbers_of, subject_of
from afterword_text.tokens import count_tokens
from afterword_text.visible import without_hidden

KINDS: tuple[FactKind, ...] = ("identity", "relation", "constraint", "preference", "plan", "event")
"""Order of the facts in a profile: the longest-lived kinds come first."""
ORDER = {kind: place for place, kind in enumerate(KINDS)}
PROFILE_TOKENS = 1000
"""Default limit for a profile, in tokens."""
MOST_PROFILE_FACTS = 20_000
"""A profile is made of this many of a user's facts, the last ones."""
FRAME_TOKENS = 30
"""Number of tokens in the lines around a quotation."""
KNOWN = "Known of the user"
MOST_SOURCES = 10
"""Maximum number of sources named for a fact, newest first."""
MOST_SUPERSEDED = 100
"""Maximum number of superseded facts in a profile, newest first."""


_ASKED: dict[str, frozenset[str]] = {
    thing: frozenset(names.split()) for thing, names in VOCABULARY["about_user"]["asked"].items()
}
"""The attributes and kinds of facts that answer a question about one thing."""


class FactSource(Model):
    """An episode and its messages that state a fact."""

    conversation_id: str
    episode_id: str
    message_ids: tuple[str, ...]
    ended_at: Time
    """When the episode's last message was sent."""


class KnownFact(Model):
    """A fact in a profile. If several episodes state the same fact, it has the newest wording."""

    statement: str
    kind: FactKind
    attribute: str | None
    """Name of the value that the fact gives, such as `home_city`."""
    other_attributes: tuple[str, ...] = ()
    """Names of the other values that the same statement gives."""
    about: str | None
    """Name of the person the fact is about; None for the user."""
    said_by: Role
    """`user` if the user said it in at least one source."""
    sources: tuple[FactSource, ...]
    """The sources, newest first, at most 10."""
    superseded_at: Time | None = None
    """End of the episode in which a later fact replaced this one; None if it still holds."""
    superseded_by: str | None = None
    """Statement of the fact that replaced this one; null if it still holds."""

    def as_line(self, clean: Callable[[str], str] = without_hidden) -> str:
        """Format the fact as one line for a model, with a note if the user did not say it."""
        about = f"{self.about}: " if self.about else ""
        marked = "" if self.said_by == "user" else f" (said by the {self.said_by}, not the user)"
        return " ".join(clean(f"{about}{self.statement}").split()) + marked

    def as_dated_line(self, clean: Callable[[str], str] = without_hidden) -> str:
        """Format the fact with the day on which it was last said."""
        return f"{self.as_line(clean)} ({self.sources[0].ended_at:%Y-%m-%d})"


class Profile(Model):
    """What is known about a user, by kind, newest first within each kind."""

    user_id: str
    """The user."""
    tenant_id: str | None
    """The tenant; null for none."""
    facts: tuple[KnownFact, ...]
    """Current facts."""
    superseded: tuple[KnownFact, ...]
    """Facts that later ones replaced, most recently replaced first, at most 100."""
    omitted: int
    """Number of current facts that did not fit into the token limit."""
    tokens: int
    """Upper bound on the number of tokens in `as_text`."""
    time_zone: str = "UTC"
    """The zone in which days are shown."""

    def as_text(self) -> str:
        """Return the current facts as one text for a prompt, quoted as data; "" if nothing is known.

        Equal facts give equal texts, so that a model's server can cache the text as a prefix.
        """
        return quotation("\n".join(self.lines()), KNOWN) if self.facts else ""

    def lines(
        self, clean: Callable[[str], str] = without_hidden, end: Callable[[FactSource], str] = lambda _: ""
    ) -> list[str]:
        """Format the current facts, one indented line each, with its day. `clean` is applied to each foreign text, and
        `end` of its newest source is put after each fact.
        """
        said = (INDENTATION.lstrip("\n") + fact.as_dated_line(clean) + end(fact.sources[0]) for fact in self.facts)
        return list(dict.fromkeys(said))  # a sentence may state two facts


Run = Sequence[FactOfUser]
"""What consecutive episodes say in the same words, oldest first."""


class Superseded(NamedTuple):
    """A fact that no longer holds."""

    run: Run
    end: FactOfUser
    """What replaced it."""


class Holding(NamedTuple):
    """A fact that holds, as it is told."""

    run: Run
    statement: str
    others: list[str]
    """Its other attributes."""


Key = tuple[str, str | None, str]
"""The person that facts are about, and their attribute or, without one, their statement."""
ALIKE = 0.5
"""How much alike two names are if one corrects the other."""
_NAMES = re.compile(r"\b[^\W\d_a-zß-ÿ][\w'’-]+")
Placed = tuple[int, FactOfUser]
"""A fact, and its place among all, in the order in which they were said."""

MOST_CORRECTED, CORRECTED = 100, ("identity", "relation", "constraint", "plan", "event")
"""A correction of an earlier conversation means one of this many statements of these kinds."""
LATE = timedelta(days=3)
"""A correction that does not name the wrong value comes at most so long after it."""
MOST_COMPARED = 6
"""Number of the next statements that are compared with a fact because they share one thing with it, such as a word."""
COVERED = 1 / 3
"""A statement is ended by a later one that has at least this share of its words."""


class Outcome(NamedTuple):
    """What was so, and what tells without naming it that it is over."""

    was: re.Pattern[str]
    ends: re.Pattern[str]
    shares_words: bool
    """True if both have to be about the same thing."""
    names_others: bool
    """True if what ends it may be about another person, such as a child."""


@cache
def _outcomes() -> tuple[Outcome, ...]:
    return tuple(
        Outcome(
            re.compile(one["was"].replace("\n", ""), re.IGNORECASE),
            re.compile(one["ends"].replace("\n", ""), re.IGNORECASE),
            one.get("shares", False),
            one.get("names_others", False),
        )
        for one in VOCABULARY["first_person"]["outcomes"]
    )


SEVERAL = ("job",)
"""Attributes that may have several values at a time, unless one is said to be new."""
SINGLE = ("marital_status",)
"""Attributes whose value ends with any statement that one has ended."""
LASTING = ("name", "surname", "birthday", "home_town", "phone", "email", "address")
"""Attributes that end only if a statement is about them."""


class Endings:
    """The statements that end others, by the words that they have, and those that replace others."""

    def __init__(self) -> None:
        self._of_attribute: defaultdict[str, list[Placed]] = defaultdict(list)
        self._by_word: defaultdict[str, list[Placed]] = defaultdict(list)
        self._of_outcome: defaultdict[Outcome, list[Placed]] = defaultdict(list)
        self._new: defaultdict[str, list[Placed]] = defaultdict(list)

    def add(self, place: int, fact: FactOfUser) -> None:
        if fact.attribute:
            self._of_attribute[fact.attribute].append((place, fact))
        for outcome in _outcomes():
            if outcome.ends.search(fact.statement):
                self._of_outcome[outcome].append((place, fact))
        for word in subject_of(_ended_by(fact)).words:
            self._by_word[word].append((place, fact))

    def add_new(self, place: int, fact: FactOfUser) -> None:
        """Add a statement that gives a new value, or a number of something."""
        if fact.attribute in SEVERAL and PHRASES.new.search(fact.statement):
            self._new[fact.attribute].append((place, fact))
        for unit in numbers_of(fact.statement):
            self._new[unit].append((place, fact))

    def of(self, fact: FactOfUser, after: int, before: int | None = None) -> FactOfUser | None:
        """Return the first statement between two places that ends the fact, of the next ones that may."""
        endings: dict[int, FactOfUser] = {}
        for placed in self._of_subjects(fact):
            begin = bisect_right(placed, after, key=itemgetter(0))
            endings |= placed[begin : begin + MOST_COMPARED]
        places = (place for place in sorted(endings) if before is None or place < before)
        return next((endings[place] for place in places if is_ended(fact, endings[place])), None)

    def _of_subjects(self, fact: FactOfUser) -> Iterator[Sequence[Placed]]:
        """Yield the statements that share one thing with a fact, for each such thing."""
        yield self._of_attribute.get(fact.attribute or "", ())
        yield from (self._new.get(name, ()) for name in (fact.attribute or "", *numbers_of(fact.statement)))
        about = subject_of(fact.statement)
        yield from (self._by_word[word] for word in (*about.words, *about.verbs) if word in self._by_word)
        yield from (ends for outcome, ends in self._of_outcome.items() if outcome.was.search(fact.statement))


def is_replaced(fact: FactOfUser, new: FactOfUser) -> bool:
    """Return whether a later statement gives another value of what this fact says, although no attribute tells."""
    if (fact.about or "").casefold() != (new.about or "").casefold():
        return False
    if fact.attribute in SEVERAL and fact.attribute == new.attribute:
        return PHRASES.new.search(new.statement) is not None
    if fact.attribute and not fact.attribute.startswith(("number_of_", "budget")):
        return False
    later_numbers = numbers_of(new.statement)
    units = [
        unit for unit, value in numbers_of(fact.statement).items() if later_numbers.get(unit, ONE) not in (value, ONE)
    ]
    if not units:
        return False
    about, later = subject_of(fact.statement), subject_of(new.statement)
    shared = about.words.keys() & later.words.keys()
    if not later.others <= about.others or shared.isdisjoint(units):
        return False
    return bool(PHRASES.new.search(new.statement)) or all(word in shared or word.isdigit() for word in about.words)


def _ended_by(end: FactOfUser) -> str:
    """Return what a statement ends, without the words that ask to forget it."""
    request, _, that = end.statement.partition(" (")
    if that and PHRASES.forget_that.match(request):
        return that
    if wrong := _corrected_by(end.statement):
        return wrong
    subject = PHRASES.forget_subject.match(end.statement)
    return subject["subject"] if subject else end.statement


@lru_cache(maxsize=1000)
def _corrected_by(statement: str) -> str:
    """Return the statement that a correction repeats, because its value is wrong; "" if it corrects none."""
    correction, _, wrong = statement.partition(" (")
    return wrong.removesuffix(")") if correction_in(correction) else ""


def _is_forgotten(fact: FactOfUser, end: FactOfUser) -> bool:
    if (fact.about or "").casefold() != (end.about or "").casefold():
        return False
    if wrong := _corrected_by(end.statement):
        return fact.statement == wrong
    if end.attribute:
        return fact.attribute == end.attribute
    about, ended = subject_of(fact.statement), subject_of(_ended_by(end))
    return ended.words.keys() <= about.words.keys() | about.verbs and about.others <= ended.others


def is_ended(fact: FactOfUser, end: FactOfUser) -> bool:
    """Return whether a later statement that something is no longer so means this fact."""
    if end.status != "ended":
        return is_replaced(fact, end)
    if _corrected_by(end.statement) or PHRASES.forget_subject.match(end.statement):
        return _is_forgotten(fact, end)
    about, ended = subject_of(fact.statement), subject_of(_ended_by(end))
    meant = {word for word in ended.words if ended.heads.get(word) in (None, *about.words)}
    if (fact.about or "").casefold() != (end.about or "").casefold():
        return False
    shared = sum(weight for word, weight in about.words.items() if word in meant)
    is_outcome = False
    is_of_others = not ended.others <= about.others
    for one in (outcome for outcome in _outcomes() if outcome.ends.search(end.statement)):
        if one.was.search(fact.statement) and (shared or not one.shares_words):
            return one.names_others or not is_of_others
        is_outcome = True  # it ends nothing else, unless it names it
    if is_of_others or (fact.attribute in LASTING and fact.attribute != end.attribute):
        return False
    plain = [word for word, weight in about.words.items() if weight < NAME_WEIGHT]
    if fact.attribute and fact.attribute == end.attribute:
        return shared > 0 or not ended.words or fact.attribute in SINGLE
    topics = ended.topics - {"has"}  # "I have sold …" is not about having
    fits = not about.topics or not topics or bool(about.topics & topics)
    is_covered = 0 < shared >= COVERED * sum(about.words.values())
    covers = bool(ended.words) and ended.words.keys() <= about.words.keys()
    names_all = covers or (bool(plain) and all(word in meant for word in plain))
    return fits and (is_covered or (names_all and not is_outcome))


def profile(
    user_id: str, tenant_id: str | None, facts: Iterable[FactOfUser], max_tokens: int = PROFILE_TOKENS
) -> Profile:
    """Merge the facts about a user; the facts of one episode must be in the episode's order.

    Among facts with the same attribute, the last one (by the end of its episode, then by the log) supersedes the
    earlier ones. Equal statements are one fact with several sources. A fact that only an assistant or a tool stated
    does not supersede anything the user said.
    """
    runs, superseded = merged(sorted(facts, key=attrgetter("ended_at", "conversation_id", "ordinal")))
    holding = _told_once(runs, superseded)
    holding.sort(key=lambda each: _last_said(each.run), reverse=True)
    holding.sort(key=lambda each: ORDER[each.run[-1].kind])
    kept: list[KnownFact] = []
    tokens = FRAME_TOKENS
    for fact in (_known(*each) for each in holding):  # reads at most one fact more than fits
        cost = count_tokens(f"{INDENTATION}{fact.as_dated_line()}\n")
        if tokens + cost > max_tokens:
            break
        kept.append(fact)
        tokens += cost
    superseded.reverse()  # within one episode, too, the latest change comes first
    superseded.sort(key=lambda ending: (ending.end.ended_at, _last_said(ending.run)), reverse=True)
    once = {(*_said_in(each.run), each.end.statement, each.end.ended_at): each for each in reversed(superseded)}
    ended = tuple(_known(each.run, end=each.end) for each in reversed(once.values()))[:MOST_SUPERSEDED]
    return Profile(
        user_id=user_id,
        tenant_id=tenant_id,
        facts=tuple(kept),
        superseded=ended,
        omitted=len(holding) - len(kept),
        tokens=tokens if kept else 0,
    )


def _last_said(run: Run) -> datetime:
    return run[-1].ended_at


def comparable(fact: FactOfUser) -> str:
    """Return a fact's statement; equal ones may differ in case, spaces and the final full stop."""
    return " ".join(fact.statement.casefold().split()).rstrip(" .!…")


def merged(in_order: Iterable[FactOfUser]) -> tuple[list[Run], list[Superseded]]:
    """Return the current facts and the superseded ones. `in_order` lists them as they were said, oldest first."""
    of_user: defaultdict[Key, list[Placed]] = defaultdict(list)
    of_others: defaultdict[Key, list[Placed]] = defaultdict(list)
    endings = Endings()
    for place, fact in enumerate(_with_corrections(in_order)):
        about = fact.about.casefold() if fact.about else ""
        if fact.status == "ended":
            endings.add(place, fact)
            continue
        if fact.said_by == "user":
            endings.add_new(place, fact)
        is_one_of_several = fact.attribute in SEVERAL and fact.status == "implied"
        key = about, fact.attribute, "" if fact.attribute and not is_one_of_several else comparable(fact)
        (of_user if fact.said_by == "user" else of_others)[key].append((place, fact))
    holding: list[Run] = []
    superseded: list[Superseded] = []
    for key, group in (*of_user.items(), *of_others.items()):
        run, ended = _over_time(group, endings)
        superseded += ended
        if not run:
            continue
        by_user = [fact for _, fact in of_user.get(key, ())]
        end = _said_by_the_user_later(run, by_user) if run[0].said_by != "user" else None
        if end is None:
            holding.append(run)
        elif comparable(end) != comparable(run[-1]):  # an equal statement only confirms the fact
            superseded.append(Superseded(run, end))
    return holding, superseded


def _with_corrections(in_order: Iterable[FactOfUser]) -> Iterator[FactOfUser]:
    """Yield the facts. A correction of an earlier conversation repeats the last statement that has its wrong value."""
    said: deque[FactOfUser] = deque(maxlen=MOST_CORRECTED)
    for fact in in_order:
        named = correction_in(fact.statement) if fact.status == "ended" else {}
        if not named:
            yield fact
            if fact.status != "ended" and fact.said_by == "user" and fact.kind in CORRECTED and not fact.about:
                said.append(fact)
            continue
        old, form = named.get("old"), form_of(named)
        if old is None and form:
            old = only_value(form, (one.statement for one in reversed(said) if one.ended_at > fact.ended_at - LATE))
        right = [(one, corrected(one.statement, old, named["new"])) for one in reversed(said) if old]
        wrong, text = next(((one, text) for one, text in right if text), (None, None))
        if wrong and text:
            yield fact._replace(statement=f"{fact.statement} ({wrong.statement})")
            values = [one for one in said if one.statement == wrong.statement and one.episode_id == wrong.episode_id]
            for one in values:
                yield fact._replace(statement=text, kind=one.kind, attribute=one.attribute, status=one.status)


def _is_too_weak(fact: FactOfUser, holding: FactOfUser) -> bool:
    """Return whether a value cannot replace the one that holds.

    People say "My name is Ines" once. A quite different name in such a sentence is more often somebody else's, unless
    the sentence says that it is new.
    """
    if holding.status == "implied":
        return fact.status == "implied" and fact.attribute == "name"
    if fact.status == "stated" and fact.attribute == "name" and PHRASES.introduces.match(fact.statement):
        new, old = (" ".join(_NAMES.findall(each.statement)[-2:]) for each in (fact, holding))
        return not PHRASES.renames.search(fact.statement) and SequenceMatcher(None, new, old).ratio() < ALIKE
    return fact.status == "implied"


def _over_time(group: Sequence[Placed], endings: Endings) -> tuple[list[FactOfUser], list[Superseded]]:
    """Return the value of an attribute that holds, which may be none, and the earlier ones."""
    run: list[FactOfUser] = []
    superseded: list[Superseded] = []
    last = 0
    for place, fact in group:
        if run and (end := endings.of(run[-1], last, place)):
            superseded.append(Superseded(run, end))
            run = []
        if run and comparable(run[-1]) == comparable(fact):
            run.append(fact)
        elif _is_too_weak(fact, run[-1]) if run else fact.attribute and PHRASES.only_changes.search(fact.statement):
            continue
        else:
            superseded += [Superseded(run, fact)] if run else []
            run = [fact]
        last = place
    if run and (end := endings.of(run[-1], last)):
        return [], [*superseded, Superseded(run, end)]
    return run, superseded


def _said_by_the_user_later(run: Run, by_user: Run) -> FactOfUser | None:
    """Return the user's statements on the same subject: the same statement at any time, or another value later."""
    same = (fact for fact in by_user if comparable(fact) == comparable(run[-1]))
    later = (fact for fact in by_user if fact.ended_at >= run[-1].ended_at)
    return next(same, None) or next(later, None)


def _said_in(run: Run) -> tuple[str, str, str]:
    """Return the statement, the person it is about, and the episode that states it last."""
    return comparable(run[-1]), (run[-1].about or "").casefold(), run[-1].episode_id


def _told_once(runs: Iterable[Run], superseded: Iterable[Superseded]) -> list[Holding]:
    """Return what holds: each statement once, or the values that are left of it if one has ended."""
    over: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    for each in superseded:
        over[_said_in(each.run)].append(each.run[-1].attribute or "")
    by_statement: dict[tuple[str, str, str], Holding] = {}
    holding: list[Holding] = []
    for run in runs:
        said, attribute = _said_in(run), run[-1].attribute or ""
        if ended := [each for each in over[said] if each != attribute]:
            holding.append(Holding(run, _value(run[-1].statement, attribute, ended), []))
        elif said in by_statement:
            by_statement[said].others.append(attribute)
        else:
            by_statement[said] = Holding(run, run[-1].statement, [])
    return [*holding, *by_statement.values()]


def _value(statement: str, attribute: str, ended: Iterable[str]) -> str:
    """Return the value of an attribute in a statement that is no longer true as a whole."""
    if (shown := _shown().get(attribute)) and (found := shown.search(statement)):
        return f"{attribute.replace('_', ' ')}: {found[found.lastgroup or 0]}"
    return f"{statement} (no longer: {', '.join(ended)})"


@cache
def _shown() -> dict[str, re.Pattern[str]]:
    shown = VOCABULARY["first_person"]["shown"]
    return {name: re.compile(with_pieces(one.replace("\n", "")), re.IGNORECASE) for name, one in shown.items()}


def _known(run: Run, statement: str = "", others: Sequence[str] = (), end: FactOfUser | None = None) -> KnownFact:
    newest = run[-1]
    return KnownFact(
        statement=statement or newest.statement,
        kind=newest.kind,
        attribute=newest.attribute,
        other_attributes=tuple(filter(None, others)),
        about=newest.about,
        said_by=newest.said_by,
        sources=tuple(
            FactSource(
                conversation_id=fact.conversation_id,
                episode_id=fact.episode_id,
                message_ids=tuple(fact.message_ids),
                ended_at=fact.ended_at,
            )
            for fact in run[: -MOST_SOURCES - 1 : -1]
        ),
        superseded_at=end and end.ended_at,
        superseded_by=end and end.statement,
    )


def answering(thing: str, known: Sequence[KnownFact], *, by_name: bool = False) -> dict[str, list[str]]:
    """Return the messages that state the facts which are asked for, by episode, in the order of the profile.

    With `by_name`, only those facts count whose attribute is asked for: others of their kind may say anything.
    """
    wanted = _ASKED.get(thing)
    facts = [each for each in known if wanted is None or _answers(each, wanted, by_name)]
    by_episode: dict[str, list[str]] = {}
    for source in chain.from_iterable(fact.sources[:1] for fact in facts):
        messages = by_episode.setdefault(source.episode_id, [])
        messages += (each for each in source.message_ids if each not in messages)
    return by_episode


def _answers(fact: KnownFact, wanted: Set[str], by_name: bool) -> bool:
    if fact.about:
        return False
    names = {fact.attribute, *fact.other_attributes}
    return not wanted.isdisjoint(names) or (not by_name and fact.kind in wanted)
