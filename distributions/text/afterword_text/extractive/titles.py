"""Finds titles for extractive summaries: a noun phrase from the first request."""

import re
from collections.abc import Iterator, Sequence

from afterword_text.extractive.ranking import FILLERS, GREETING, Turn
from afterword_text.language import VOCABULARY, pattern, stem, word_set, words
from afterword_text.texts import TITLE_CHARACTERS

_WORD = re.compile(r"[^\W_]+(?:[._&/:+-][^\W_]+|,\d{3}(?!\d)|['’](?:s|t|m|re|ve|ll|d)\b)*\+*[#%]?")
_CLAUSE_END = re.compile(r",(?!\w)|(?<!\w),|[，、]")
_PART_END = re.compile(
    r"[:.](?!\w)|(?<!\w)[:.]|\.(?=[A-Z][a-z])|[;!?()\[\]…–—\"“”„«»¿¡；：。！？「」（）]|\s-\s|(?<!\w)'|'(?!\w)"
)

_FORM_OF_ADDRESS = re.compile(r"\b(Mr|Mrs|Ms|Dr|Prof|St|Fr|Hr)\.(?= )")
"""Its full stop ends no clause."""
_LABEL = re.compile(r"\A(?:(?:Question|Q|User|Human): |[A-Z]\w*(?: [A-Z]\w*)?: (?=I\b))")
"""Who speaks, in a transcript, or what a message is: "Anna Lee: I …", "Question: …". "Docker: …" names the topic."""
_GREETED = re.compile(rf"\A(?i:{GREETING.pattern})[^\w¿¡]*(?:[A-ZÀ-Þ][\w'’-]+\.?(?: [A-ZÀ-Þ][\w'’-]+){{0,2}}, )?")
"""A greeting, and the name of who is greeted."""
_OWN_NAME = re.compile(
    rf"\A(?:[A-ZÀ-Þ]\w+, )?(?i:{pattern('titles', 'own_name')}) [A-ZÀ-Þ][\w'’-]+(?: [A-ZÀ-Þ][\w'’-]+){{0,2}}"
    r"(?:\W*\Z|[,.] ?(?:(?:and|und|et|y|e|en) )?| (?:and|und|et|y|e|en) )"
)
"""An introduction at the beginning, up to the comma, the conjunction or the end after it."""
_DETERMINERS, _LINKS = (
    {language: frozenset(words.split()) for language, words in VOCABULARY["titles"][name].items()}
    for name in ("determiners", "links")
)
_VERBS = word_set("titles", "verbs")
_IRREGULAR = word_set("titles", "irregular")
_VERB_FORMS = _IRREGULAR | {form for verb in _VERBS for form in (verb, f"{verb}s", f"{verb}es", f"{verb[:-1]}ies")}
"""English words that end a noun phrase or precede one."""
_VERBS_ELSEWHERE = word_set("titles", "verbs_elsewhere")
_BEFORE_VERBS = word_set("titles", "before_verbs")
_VAGUE = word_set("titles", "vague")
NONE = frozenset[str]()
_ADVERB = re.compile(r"(?!fami|supp|rep|assemb|anoma|butterf)[a-z]{3,40}ly")


def title_of(turns: Sequence[Turn], language: str) -> str:
    """Return the first noun phrase of the first request, in at most 60 characters.

    A single word says little, so its whole sentence is the title if that is short enough. The title is empty if nobody
    names anything. In a language without lists in `vocabulary.toml`, a phrase is a run of words between stop words.
    """
    for turn in [turn for turn in turns if turn.speaker[0] == "user"] or turns:
        for said in turn.said:
            sentence = _OWN_NAME.sub("", _GREETED.sub("", _LABEL.sub("", said))).strip(".!:;,，。、 ")
            parts = _PART_END.split(_FORM_OF_ADDRESS.sub(r"\1", sentence))
            if language != "en":  # elsewhere, the later clauses often have participles, which look like nouns
                parts = [clause for part in parts for clause in _CLAUSE_END.split(part)]
            phrases = next(filter(None, (_phrases(part, language) for part in parts)), None)
            if phrases and len(words(sentence)) > 1:
                enough = [phrase for phrase in phrases if not _WORD.fullmatch(phrase)]
                title = next(
                    candidate for candidate in (*enough, sentence, *phrases) if len(candidate) <= TITLE_CHARACTERS
                )
                return title[:1].upper() + title[1:]
    return ""


def _phrases(part: str, language: str) -> list[str]:
    runs = ((run, clause) for clause in _CLAUSE_END.split(part) for run in _runs(clause, language))
    return [phrase for run, clause in runs if (phrase := _trimmed(run, clause, language))]


def _runs(clause: str, language: str) -> Iterator[list[re.Match[str]]]:
    """Cut a clause where no noun phrase continues: at verbs, at stop words, and at articles without a preposition
    before them. In "Plan a trip to Rome", the word right before the article is a verb.
    """
    determiners, links = _DETERMINERS.get(language, NONE), _LINKS.get(language, NONE)
    run: list[re.Match[str]] = []
    before, is_definite = "", False
    for word in _WORD.finditer(clause):
        small = word[0].lower().replace("’", "'")
        last = run[-1][0] if run else ""
        is_genitive = language == "de" and last[:1].isupper() and small.endswith(("r", "es"))
        if small in determiners and not (_links(last, language) or is_genitive or (run and small in links)):
            if language == "en" or any(_links(each[0], language) for each in run):
                yield run[:-1] if language == "en" else run  # in English, what precedes the verb is its subject
            run = []
        elif small in determiners or small in links or small == "to":
            run.append(word)
        elif _breaks(word[0], before, is_definite, language):
            if small in _VAGUE:  # a time, to which the words before it belong, as in "by the end of the week"
                linked = [number for number, other in enumerate(run) if _links(other[0], language)]
                run = run[: linked[-1]] if linked else []
                while run and run[-1][0].lower() in _VAGUE:
                    run.pop()
            another = [n for n in range(1, len(run) - 1) if run[n][0] == "and" and run[n + 1][0] in determiners]
            yield run[: another[-1]] if another else run  # "… and the bank says": a clause of its own
            run = []
        else:
            run.append(word)
        before, is_definite = small, small in determiners
    yield run


def _breaks(word: str, before: str, is_definite: bool, language: str) -> bool:
    """Return whether a noun phrase cannot contain this word. `is_definite` says that it stands after an article."""
    small = word.lower().replace("’", "'")
    if "'" in small and not small.endswith("'s"):
        return True
    if word.isupper() and len(word) > 1:
        return False
    is_name = language == "en" and bool(before) and word.istitle() and len(word) > 1  # "9 May", inside a sentence
    if (
        (stem(small.removesuffix("'s"), language) is None and not is_name)
        or small in FILLERS
        or (language != "en" and small in _VERBS_ELSEWHERE)
    ):
        return True
    is_linked = before in _LINKS["en"] and before not in ("and", "or")  # no verb in "between mean and median"
    is_form = small in _IRREGULAR or (not is_linked and (small in _VERB_FORMS or small.endswith("ed")))
    is_verb = is_form or before in _BEFORE_VERBS
    is_plain = word.islower() or not before  # not a name, unless it begins a sentence
    return language == "en" and ((is_verb and not is_definite and is_plain) or bool(_ADVERB.fullmatch(small)))


def _trimmed(run: Sequence[re.Match[str]], clause: str, language: str) -> str:
    """Return the phrase from its first to its last word of content, if it names something."""
    words = list(run)
    while words and words[-1].end() - words[0].start() > TITLE_CHARACTERS:
        words.pop()
    if language == "de":
        nouns = [at for at, word in enumerate(words) if word[0][0].isupper()]
        words = words[: nouns[-1] + 1 + (len(nouns) == 1)] if nouns else []
    while words and _links(words[-1][0], language):
        words.pop()
    while words and _cannot_open([word[0] for word in words[:3]], language):
        words.pop(0)
    content = (word[0] for word in words if not _links(word[0], language))
    names_something = any(word.lower() not in _VAGUE and word[0].isalpha() and len(word) > 1 for word in content)
    return clause[words[0].start() : words[-1].end()] if names_something else ""


def _links(word: str, language: str) -> bool:
    return (
        word == "to" or word.lower() in _LINKS.get(language, NONE) or word.lower() in _DETERMINERS.get(language, NONE)
    )


def _cannot_open(words: Sequence[str], language: str) -> bool:
    """Return whether a phrase loses nothing without its first word: "kind of dogs" is about dogs."""
    first, second = words[0], words[1] if len(words) > 2 else ""
    return _links(first, language) or (
        first.lower() in _VAGUE and (_links(second, language) or second.lower() in _VAGUE)
    )
