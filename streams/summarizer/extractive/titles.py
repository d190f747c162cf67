"""Finds titles for extractive summaries: a noun phrase from the user's first request, or from the main topic."""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from afterword.streams.summarizer.extractive.ranking import FILLERS, GREETING, LONG_TURN, Terms, Turn
from afterword.streams.text.language import stem

TITLE_CHARACTERS = 60
MAX_PHRASE_WORDS = 10
FIRST_CLAUSE = 3.0
FIRST_TURN = 1.8
"""Factors for phrases of the first request, because people begin with what they want: for its first clause with a
phrase, and for later clauses."""
LINK = 0.2
"""Cost of a preposition or an article inside a phrase."""
SINGLE = 0.5
"""Factor for a phrase of one word, which says little alone."""
UNSURE = 0.4
"""Factor for words without an article, in languages whose verbs are not known here."""
NAMED = 1.15
"""Factor for a phrase with a name."""
NUMBER = 0.3
"""Value of a number, which is worth less than any word in a title."""
UNIT_LETTERS = 2
CODE_DIGITS = 3
"""A number with at least this many digits at the end of a phrase names something: "order 4711"."""
_WORD = re.compile(r"[^\W_]+(?:[._&/:+-][^\W_]+|,\d{3}(?!\d)|['’](?:s|t|m|re|ve|ll|d)\b)*\+*#?")
_CLAUSE_END = re.compile(
    r"[,:.](?!\w)|(?<!\w)[,:.]|\.(?=[A-Z][a-z])|[;!?()\[\]…–—\"“”„«»¿¡，、；：。！？「」（）]|\s-\s|(?<!\w)'|'(?!\w)"
)

_FORM_OF_ADDRESS = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|St|Fr|Hr)\.(?= )")
"""Its full stop ends no clause."""


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_DETERMINERS = {
    "en": _set("a an the my your our their his her its some any this these those every each another"),
    "de": _set(
        """ein eine einen einem einer eines der die das den dem des mein meine meinen meinem meiner dein deine deinen
        unser unsere unseren ihr ihre ihren ihrem ihrer sein seine seinen kein keine keinen"""
    ),
    "fr": _set("un une le la les l des mon ma mes ton ta tes son sa ses notre nos votre vos leur leurs du cette cet"),
    "es": _set("un una el la los las mi mis tu tus su sus nuestro nuestra este esta unos unas"),
    "it": _set("un uno una il lo la gli le i l mio mia miei tuo tua suo sua nostro nostra questo questa"),
    "pt": _set("um uma o a os as meu minha meus minhas seu sua nosso nossa este esta"),
    "nl": _set("een de het mijn je jouw onze ons zijn haar hun"),
}
"""Words with which a noun phrase begins."""
_LINKS = {
    "en": _set("of for in on at with from by and & or about per without near between into"),
    "de": _set("von für mit aus im am zum zur vom bei nach in über und gegen ohne auf an zu wegen"),
    "fr": _set("de d du des pour avec à au aux en sur sans et chez"),
    "es": _set("de del para con al a y e en sobre sin por"),
    "it": _set("di d da per con della delle dei del in su senza e a al alla"),
    "pt": _set("de do da dos das para com em no na sem e sobre"),
    "nl": _set("van voor met op in en naar zonder bij over"),
}
"""Words that may stand inside a noun phrase, but never at its ends."""
_VERBS = _set(
    """
    accept add advise agree allow apologize apply arrive ask assume avoid become begin believe blend bring cancel
    choose come confirm consider contain continue cost crash create decide deliver depend describe determine
    discuss earn eat enable enjoy ensure enter exist expect explain fail feel find follow forget get give go grow
    guess happen hear improve include keep know learn leave let like live look lose maintain make mean meet
    mention mind miss need notify obtain occur prefer prepare prioritize provide put qualify realize receive
    recommend refer relate remember remind remove require resolve save say see seem sell send sit speak spend
    start stay stop submit suggest suppose take tell think try understand use want wear wish wonder work write
    """
)
_IRREGULAR = _set(
    """
    us talk got gave went came kept knew left lost made met said saw sent sold spent stood taught took thought told wore
    won wrote broke bought brought chose felt forgot found grew heard became began ate fell flew held paid ran
    spoke gone done seen taken given going doing having being getting using making including involving regarding
    concerning containing since considering gonna wanna gotta please thanks thank hi hello hey ok okay yes no yeah
    haha lol wow able sure aware tired eligible ready interested next last today tomorrow yesterday tonight now
    soon ago always never ever sometimes often again already yet later week weeks month months year years day days
    hour hours minute minutes time times morning evening afternoon night once twice maybe perhaps else too also
    just even still away around together instead however therefore anyway actually really very much many more
    most less few same other others such only own well not don't than like as if something anything nothing
    everything someone anyone everyone there here currently
    """
)
_VERB_FORMS = _IRREGULAR | {form for verb in _VERBS for form in (verb, f"{verb}s", f"{verb}es", f"{verb[:-1]}ies")}
"""English words that end a noun phrase or precede one."""
_BEFORE_VERBS = _set(
    """
    i you we they he she it who do does did can could will would shall should may might must cannot let lets to
    have has had don't didn't can't won't i'm i'd i'll i've you'd you'll you've we'll we've we'd they've doesn't
    couldn't that which
    """
)
"""English words that a verb follows, unless an article does."""
_BETWEEN = _set("not kinda so very too a bit rather also just really still always never even already")
"""Adverbs between a subject and its verb."""
_VAGUE = _set(
    """
    thing things lot lots stuff way ways kind kinds sort bit people person someone guy guys man question questions
    information info help case cases example part parts number place reason reasons problem problems fact type
    types detail details couple copy option options process page link following step steps matter chance advice
    look idea mind one good great best better nice new big little long short full whole different certain specific right
    wrong fine back morning evening afternoon night day days week weeks month months year years time times hour hours
    minute minutes weekend moment
    """
)
"""Words that do not name a topic alone."""
_COPULAS = _set("i'm am is are was were feel feeling be i've been getting so very it's he's she's we're")
_INFINITIVES = {"fr": ("er", "ir"), "es": ("ar", "er", "ir"), "pt": ("ar", "er", "ir"), "it": ("are", "ere", "ire")}
NONE = frozenset[str]()
_ELIDED = re.compile(r"\b([lLdDmMtTsSnNjJcC]|[qQ]u|[uU]n|[dD]ell|[aA]ll|[nN]ell|[sS]ull)['’](?=\w)")
_PARTICIPLE = re.compile(r"^\s*[a-z]{2,40}ing (?!of |for |with |on )")
"""The verb with which a later clause begins: ", starting 1 February"."""
_ADVERB = re.compile(r"[a-z]{3,40}ly")


class Run(NamedTuple):
    """Consecutive words of a clause that may be a noun phrase."""

    words: list[re.Match[str]]
    is_definite: bool
    """True if an article or a similar word precedes them."""


class Phrase(NamedTuple):
    """A noun phrase, with the text from its first to its last word."""

    text: str
    words: tuple[str, ...]
    is_sure: bool
    """False if only an article would show that it is a noun phrase."""


def title_of(turns: Sequence[Turn], terms: Terms, language: str) -> str:
    """Find the phrase of at most 60 characters whose words are used most; those of the first request count more.

    Where that is a single word, which says little, the title is the whole sentence that it comes from, if it is short
    enough. It is empty if nobody names anything. In languages that the lists above do not have, a phrase is a run of
    words between stop words.
    """
    said = [(turn, text) for turn in turns for text in turn.said[: LONG_TURN + 1]]
    used = Counter(term for _, text in said for term in set(terms(text)))
    asked = [(turn, text) for turn, text in said if turn.speaker[0] == "user"] or said
    scores: dict[str, float] = {}
    sentence_of: dict[str, str] = {}
    opening: Turn | None = None
    for turn, text in asked:
        for clause in clauses(text):
            found = [*phrases(clause, language)]
            factor = FIRST_CLAUSE if opening is None else FIRST_TURN if turn is opening else 1.0
            opening = opening or (turn if found else None)
            for phrase in found:
                scores[phrase.text] = max(_score(phrase, used, terms) * factor, scores.get(phrase.text, 0.0))
                sentence_of.setdefault(phrase.text, text)
    best = max(scores, key=lambda text: scores[text], default="")
    if best and _WORD.fullmatch(best) and len(sentence_of[best]) <= TITLE_CHARACTERS:
        best = re.sub(f"(?i:{GREETING.pattern})", "", sentence_of[best]).strip(".!:;, ")
    return best[:1].upper() + best[1:]


def clauses(sentence: str) -> Iterator[str]:
    """Yield the parts of a sentence that no noun phrase crosses."""
    for at, clause in enumerate(_CLAUSE_END.split(_FORM_OF_ADDRESS.sub(r"\1", sentence))):
        yield _PARTICIPLE.sub("", clause) if at else clause


def phrases(clause: str, language: str) -> Iterator[Phrase]:
    """Yield the noun phrases of a clause that can stand alone."""
    for run in _runs([*_WORD.finditer(_ELIDED.sub(r"\1 ", clause))], language):
        if found := _trimmed(run, clause, language):
            yield found


def _runs(words: Sequence[re.Match[str]], language: str) -> Iterator[Run]:
    """Cut a clause where no noun phrase continues.

    These places are verbs, stop words, and articles without a preposition before them: in "Plan a trip to Rome", the
    word right before the article is a verb.
    """
    determiners, links = _DETERMINERS.get(language, NONE), _LINKS.get(language, NONE)
    run = Run([], is_definite=False)
    before, is_definite = "", False
    for at, word in enumerate(words):
        small = word[0].lower().replace("’", "'")
        following = words[at + 1][0] if at + 1 < len(words) else ""
        last = run.words[-1][0] if run.words else ""
        if small in determiners and not (_links(last, language) or (language == "de" and last[:1].isupper())):
            run = Run([], is_definite=True)
        elif small in determiners or small in links or (small == "to" and _names(following, determiners)):
            run.words.append(word)
        elif _breaks(word[0], before, is_definite, language) or (
            _is_predicate(word[0], before, following.lower() in links)
            if not run.words
            else _is_verb_after(word[0], following, language)
        ):
            if small in _VAGUE:  # a time, to which the words before it belong, as in "for two years"
                linked = [number for number, other in enumerate(run.words) if _links(other[0], language)]
                run = run._replace(words=run.words[: linked[-1]] if linked else [])
            yield run
            run = Run([], is_definite=False)
        else:
            run.words.append(word)
        is_definite = small in determiners
        before = before if small in _BETWEEN or _ADVERB.fullmatch(small) else small
    yield run


def _names(word: str, determiners: Collection[str]) -> bool:
    return word.lower() in determiners or word[:1].isupper() or word[:1].isdigit()


def _breaks(word: str, before: str, is_definite: bool, language: str) -> bool:
    """Return whether a noun phrase cannot contain this word. `is_definite` says that it stands after an article."""
    small = word.lower().replace("’", "'")
    if "'" in small and not small.endswith("'s"):
        return True
    if word.isupper() and len(word) > 1:
        return False
    is_name = language == "en" and bool(before) and word.istitle() and len(word) > 1  # "9 May", inside a sentence
    if (
        (stem(small, language) is None and not is_name)
        or small in FILLERS
        or small.endswith(("it's", "that's", "what's", "let's", "there's"))
    ):
        return True
    if language != "en":
        return not is_definite and small.endswith(_INFINITIVES.get(language, ("\n",)))
    is_linked = before in _LINKS["en"] and before not in ("and", "or")  # "between mean and median": no verb follows
    is_form = small in _IRREGULAR or (not is_linked and (small in _VERB_FORMS or small.endswith("ed")))
    is_verb = is_form or before in _BEFORE_VERBS
    is_plain = word.islower() or not before  # not a name, unless it begins a sentence
    return (is_verb and not is_definite and is_plain) or bool(_ADVERB.fullmatch(small))


def _is_predicate(word: str, before: str, is_linked: bool) -> bool:
    """Return whether an adjective only leads to the topic: "I'm nervous | about my interview"."""
    return is_linked and before in _COPULAS and word.islower()


def _is_verb_after(word: str, following: str, language: str) -> bool:
    """Return whether a word inside a phrase is its verb: "chair | arrived broken", "exercise | tending the farm"."""
    if language != "en" or not word.islower() or len(word) <= 4:
        return False
    return word.endswith("ed") or (word.endswith("ing") and following.lower() in _DETERMINERS["en"])


def _trimmed(run: Run, clause: str, language: str) -> Phrase | None:
    """Return the phrase from its first to its last word of content, if it names something."""
    words = run.words[:MAX_PHRASE_WORDS]
    while words and words[-1].end() - words[0].start() > TITLE_CHARACTERS:
        words.pop()
    if len(words) < len(run.words):  # after a cut, end before a preposition, so that the title is complete
        links = [at for at, word in enumerate(words) if _links(word[0], language)]
        words = words[: links[-1]] if links else words
    if language == "de" and (nouns := [at for at, word in enumerate(words) if word[0][0].isupper()]):
        words = words[: nouns[-1] + 2] if len(nouns) == 1 else words[: nouns[-1] + 1]
    while words and _dangles(words, language):
        words.pop()
    while words and not _is_amount(words) and _cannot_open(words, language):
        words.pop(0)
    content = tuple(word[0] for word in words if not _links(word[0], language))
    if not content or all(word.lower() in _VAGUE or not word[0].isalpha() or len(word) == 1 for word in content):
        return None
    return Phrase(clause[words[0].start() : words[-1].end()], content, run.is_definite or language == "en")


def _links(word: str, language: str) -> bool:
    return (
        word == "to" or word.lower() in _LINKS.get(language, NONE) or word.lower() in _DETERMINERS.get(language, NONE)
    )


def _dangles(words: Sequence[re.Match[str]], language: str) -> bool:
    last, before = words[-1][0], words[-2:][0][0]
    return _links(last, language) or (last.isdigit() and len(last) < CODE_DIGITS and not before[0].isupper())


def _is_amount(words: Sequence[re.Match[str]]) -> bool:
    """ "50 mg of sertraline", "a 5 kg parcel" """
    return len(words) > 2 and words[0][0].isdigit() and (words[2][0] == "of" or len(words[1][0]) <= UNIT_LETTERS)


def _cannot_open(words: Sequence[re.Match[str]], language: str) -> bool:
    """Return whether a phrase loses nothing without its first word, as "kind of dogs" is about dogs."""
    first = words[0][0]
    is_vague = first.lower() in _VAGUE or not first[0].isalpha()
    return (
        first[0].isdigit() or _links(first, language) or (is_vague and len(words) > 2 and _links(words[1][0], language))
    )


def _score(phrase: Phrase, used: Counter[str], terms: Terms) -> float:
    values = (_value(word, used, terms) for word in {word.lower(): word for word in phrase.words}.values())
    links = len(phrase.text.split()) - sum(any(map(str.isalpha, word)) for word in phrase.words)
    score = sum(values) / (1 + LINK * max(0, links))
    vague = sum(word.lower() in _VAGUE for word in phrase.words) / len(phrase.words)
    is_named = any(word[0].isupper() for word in phrase.words[1:])
    score *= 1.0 if phrase.is_sure or is_named or phrase.text[0].isupper() else UNSURE
    return score * (1 - 0.5 * vague) * (NAMED if is_named else 1.0) * (SINGLE if len(phrase.words) == 1 else 1.0)


def _value(word: str, used: Counter[str], terms: Terms) -> float:
    value = max((math.log1p(used[term]) for term in terms(word)), default=0.0)
    return value if any(c.isalpha() for c in word) else min(value, NUMBER)
