"""Titles of extractive summaries: the phrase of a topic sentence that names most of what an episode is about."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate

from afterword.streams.summarizer.extractive.ranking import Terms
from afterword.streams.summarizer.sentences import cut_at_word

TITLE_CHARACTERS = 60
MAX_PHRASE_WORDS = 7
FILLER = 0.2
"""Cost of a stop word inside a phrase: "proof of citizenship" is worth it, a whole clause is not."""
SINGLE = 5
"""Stop words that a single word counts as, because it says little alone."""
NUMBER = 0.3
"""Highest value of a number: it belongs in the summary, and in a title it is worth less than any word."""
NAMED = 1.15
"""Factor for a phrase with a name."""
_WORD = re.compile(r"[^\W_]+(?:['’.,:/&-][^\W_]+)*")
_CLAUSE_END = re.compile(r"[,:.](?!\w)|(?<!\w)[,:.]|\.(?=[A-Z][a-z])|[;!?()\[\]…–—\"“”，、；：。！？「」（）]")


def _set(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


_LINKS = _set("of for in on at with from by and & or the a an my your our their his her per without")
"""Words that may be inside a noun phrase, and never at its ends."""
_ARTICLES = _set("a an the my your our their his her")
_PREPOSITIONS = _set("of for in on at with from by up out off")
_SUBJECTS = _set(
    "i you we they he she it this that these those who which what where when why how there here one someone "
    "anyone everyone something anything everything nothing whoever whatever somebody anybody whose whats thats its "
    "im ive id ill youre youve theyre hes shes theres dont didnt doesnt cant wont isnt wasnt myself yourself"
)
_AUXILIARIES = _set(
    "am is are was were be been being do does did done have has had having can could will would shall should may "
    "might must cannot let lets gonna wanna to not if whether because as than then so but while since until unless "
    "though although about into over under after before during between through against within"
)
"""Words that end a noun phrase. "Let" and "to" come before a verb."""
_BEFORE_VERBS = _set(
    "i you we they he she it who do does did can could will would shall should may might must cannot let lets to "
    "have has had don't didn't can't won't i'm i'd i'll i've you'd you'll you've we'll we've they've"
)
"""Words after which a verb comes, unless an article does."""
_VERBS = _set(
    """
    accept add advise agree allow apologize apply arrive ask assist assume avoid become begin believe bring
    build buy call called came cancel change check choose come complete confirm consider contact contain
    continue cost cover covers create cut decide deliver depend depends describe determine die discuss drink
    drive earn eat enable end enjoy enjoyed ensure enter explain expect feel felt file fill find finish follow
    forget found gave get gets getting give given gives goes going gone got grew guess happen happened happens
    hate hear heard help helps hope include includes keep kept knew know known knows learn leave left like liked
    likes live lived lives look looked looking looks lose lost love loved loves made make makes making mean
    means meet met mention mentioned miss missed move moved need needed needs occur offer offers open own owned
    pay pays pick play played plays please prefer prepare prevent provide provided provides put qualify quit ran
    reach read realize receive received recommend refer register relate remember remind replace report request
    require required requires resolve return run runs said saw say says see seem seems seen sell send sent set
    show shows sit sleep sold sounds speak spend spent start started stay stop stopped submit suggest suppose
    take taken takes talk talked talking teach tell tells thank think thinking thought told took tried try
    trying turn understand use used uses using visit wait walk want wanted wants watch watched wear went wish
    wonder wondering work worked works worry wrote write got gotten married sells buys hates eats sings
    stretches teaches runs plays asks says means comes drives walks helps finished entered woke jumped notified
    whatcha havin based related educate exchange grab along near besides except like unlike ok okay hi hello hey
    yeah haha lol wow nah yep oh
    """
)
_NOT_AT_END = _set(
    """
    able afraid available aware bad best better big certain clear common correct curious different difficult due
    early easy eligible enough entire exact extra far fast favorite few fine free full fun funny glad good great
    happy hard couple north south east west high huge important interested interesting kind late little long low
    lucky main many more most much necessary new next nice old only other own perfect possible pretty ready real
    right same several short similar simple small special specific such sure true various valid whole wrong
    young your amazing awesome crazy tired busy cute beautiful ok okay cold windy hot warm weak strong lonely
    sad angry sick healthy unhealthy delicious adorable rich poor smart weird private public accurate delinquent
    popular quiet loud dark bright blue red green black white ill tall overweight retired proud lazy first
    second third last previous current every each any some all both another no
    """
)
"""Adjectives and determiners: with one at its end a phrase breaks off."""
_NOT_AT_START = _set(
    """
    such same other more most many much every each any some all both another no few several very own only enough
    different various certain sure able good great nice bad ok okay well eligible ready available aware afraid
    tired least bout rid including next couple interested near happy popular delinquent glad busy excited
    responsible
    """
)
_TIMES = _set(
    """
    today tomorrow yesterday tonight now soon ago always never ever sometimes often usually again already yet
    later week weeks month months year years day days hour hours minute minutes time times morning evening
    afternoon night weekend monday tuesday wednesday thursday friday saturday sunday once twice maybe perhaps
    else too also just even still back away around together online yes alone instead however therefore anyway
    actually really
    """
)
_VAGUE = _set(
    """
    thing things lot lots stuff way ways kind kinds sort bit people person someone guy guys man question
    questions information info help case cases example part parts number numbers place reason reasons problem
    problems fact idea type types detail details option options process section page link following step steps
    matter
    """
)
"""Nouns that name no topic by themselves."""
_ADVERB = re.compile(r"[a-z]{3,40}ly")


def title_phrase(weighted: Sequence[tuple[str, float]], used: Counter[str], terms: Terms, english: bool = True) -> str:
    """Find the noun phrase, of at most 60 characters, whose terms are used most; two of them where one is a word.

    `weighted`: sentences with their weights; `used`: number of the episode's sentences in which a term occurs. In other
    languages than English the phrase is a run of words with content words at both ends.

    The method is that of RAKE (Rose et al., "Automatic keyword extraction from individual documents", 2010), except
    that stop words may occur inside. Empty when no sentence has a term.
    """
    found: dict[str, float] = {}
    for sentence, factor in weighted:
        for text, score in _phrases(sentence, used, terms, english):
            found[text] = max(found.get(text, 0.0), score * factor)
    ranked = sorted(found, key=lambda text: -found[text])
    best = next(iter(ranked), "")
    if english and best and len(_WORD.findall(best)) == 1:
        best = _with_another(best, ranked[1:], terms)
    return best[:1].upper() + best[1:]


def _with_another(word: str, others: Sequence[str], terms: Terms) -> str:
    """Name another topic beside a single word: alone it says too little."""
    known = set(terms(word))
    fitting = [
        f"{word} and {other}"
        for other in sorted(others, key=lambda other: " " not in other)
        if known.isdisjoint(terms(other)) and " and " not in other
    ]
    return next((both for both in fitting if len(both) <= TITLE_CHARACTERS), word)


def _phrases(sentence: str, used: Counter[str], terms: Terms, english: bool) -> Iterator[tuple[str, float]]:
    for clause in _CLAUSE_END.split(sentence):
        found = list(_WORD.finditer(clause))
        for run in _noun_runs(found) if english else [found]:
            values = [_word_value(word[0], used, terms) for word in run]
            for first, last, score in _runs([word.span() for word in run], values):
                words = [word[0] for word in run[first : last + 1]]
                if not english or (_is_title(words) and not _cuts_a_name(run, first, last)):
                    text = clause[run[first].start() : run[last].end()]
                    yield cut_at_word(text, TITLE_CHARACTERS), score * _worth(words, english)


def _noun_runs(words: Sequence[re.Match[str]]) -> Iterator[list[re.Match[str]]]:
    """Cut a clause where no noun phrase goes on: at verbs, pronouns, conjunctions and adverbs."""
    run: list[re.Match[str]] = []
    before = ""
    for word in words:
        small = word[0].lower().replace("’", "'")
        follows_subject = before in _BEFORE_VERBS and small not in _LINKS and word[0].islower()
        if small in _ARTICLES and before not in _LINKS and not before.endswith("ing"):
            # "Title a vehicle", "notified the office": the word before is a verb
            yield run[:-1]
            run = []
        if _breaks(small) or follows_subject:
            yield run
            run = []
        else:
            run.append(word)
        before = small
    yield run


def _breaks(word: str) -> bool:
    if word in _SUBJECTS or word in _AUXILIARIES or word in _VERBS or word in _TIMES:
        return True
    if "'" in word and not word.endswith("'s"):
        return True
    return word in ("it's", "that's", "what's", "let's", "there's", "he's", "she's") or bool(_ADVERB.fullmatch(word))


def _is_title(words: Sequence[str]) -> bool:
    """Return whether the words may stand alone: they name something, and nothing dangles at their ends."""
    first, last = words[0].lower(), words[-1].lower()
    if first in _NOT_AT_START or last in _NOT_AT_END or first in _LINKS or last in _LINKS:
        return False
    if last == words[-1] and len(last) > 4 and last.endswith(("ed", "ing")):
        return False
    content = [word for word in words if word.lower() not in _LINKS]
    if len(words) > 1 and first.endswith(("ed", "en")) and words[1].lower() in _PREPOSITIONS:
        return False
    if len({word.lower() for word in content}) < len(content) or (last.isdigit() and words[-2:][0].lower() in _LINKS):
        return False
    if words[0][0].isdigit() or all(word.lower() in _VAGUE for word in content):
        return False
    return any(any(c.isalpha() for c in word) and len(word) > 1 for word in content)


def _cuts_a_name(run: Sequence[re.Match[str]], first: int, last: int) -> bool:
    """Return whether a name goes on before or after the words: "York State Department"."""
    pairs = [(at, at + 1) for at in (first - 1, last) if 0 <= at < len(run) - 1]
    return any(run[one][0][0].isupper() and run[other][0][0].isupper() for one, other in pairs)


def _worth(words: Sequence[str], english: bool) -> float:
    if not english:
        return 1.0
    vague = sum(word.lower() in _VAGUE for word in words) / len(words)
    return (NAMED if any(word[0].isupper() for word in words[1:]) else 1.0) * (1 - 0.5 * vague)


def _runs(spans: list[tuple[int, int]], values: list[float]) -> Iterator[tuple[int, int, float]]:
    """Yield first and last word of each run with content words at both ends, and its score."""
    total = [0.0, *accumulate(values)]
    for first in (i for i, value in enumerate(values) if value):
        for last in range(first, min(len(values), first + MAX_PHRASE_WORDS)):
            if values[last] and (spans[last][1] - spans[first][0] <= TITLE_CHARACTERS or first == last):
                fillers = values[first:last].count(0.0) + (SINGLE if first == last else 0)
                yield first, last, (total[last + 1] - total[first]) / (1 + FILLER * fillers)


def _word_value(word: str, used: Counter[str], terms: Terms) -> float:
    value = max((math.log1p(used[term]) for term in terms(word)), default=0.0)
    return value if any(c.isalpha() for c in word) else min(value, NUMBER)
