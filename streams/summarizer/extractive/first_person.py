"""Finds facts without an LLM: sentences in which users say something lasting about themselves.

It prefers precision to recall. A rule is a pattern for the beginning of a sentence. The sentence's language need not be
known, because no rule fits a sentence in another language.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from afterword.schemas import EpisodeMessage, Fact, FactKind
from afterword.streams.summarizer.extractive.ranking import is_question
from afterword.streams.text.prose import sentences_of

MOST_FACTS = 40
"""Only this many of an episode's facts are kept, the last ones."""
STATEMENT_CHARACTERS = 200
"""A longer sentence says more than one thing."""
PEOPLE = (
    "wife|husband|partner|boyfriend|girlfriend|fianc[ée]e?|spouse|son|daughter|kids?|children|child|baby|mom|mum|mother"
    "|dad|father|parents|brother|sister|siblings?|twins?|grandmother|grandfather|grandma|grandpa|grandparents|uncle|aunt"
    "|cousin|nephew|niece|dogs?|cats?|pets?|boss|roommate"
)
_LEAD_IN = (
    r"(?:(?:well|yes|yeah|yep|no|nope|oh|ok(?:ay)?|and|but|so|also|actually|sorry|hi|hello|hey|btw|by the way|cool|nice"
    r"|great|true|please|(?:please )?(?:remember|note)(?: that)?|for the record|unfortunately|ja|nein|oui|non|sí|sì|sim"
    r"|übrigens|bitte|au fait|por cierto|comunque|trouwens)\b[,!.:]*\s+){0,3}"
)
_NAME = r"[^\W\d_][\w'’-]*"
_PROPER = r"(?-i:[A-ZÀ-Þ])[\w'’-]*"
_OFTEN = r"(?:(?:also|now|just|only|really|currently|recently|actually|mostly|usually|absolutely|do|finally)\s+)*"
_NOT_THINGS = r"(?!(?:it|that|this|your?|u|them|those|these|how|when|what|so|em|her|him|the (?:idea|sound|way))\b)"
_THING = rf"(?P<plan>{_NAME}(?: (?!(?:in|on|for|next|this|with|because|and|but)\b){_NAME}){{0,4}})"


class Rule(NamedTuple):
    """The meaning of a sentence with this beginning."""

    kind: FactKind
    attribute: str | None
    """Name of the attribute, unless the pattern's group `attribute` or `plan` contains it."""
    pattern: re.Pattern[str]


def _rules(*listed: tuple[FactKind, str | None, str]) -> tuple[Rule, ...]:
    return tuple(
        Rule(kind, attribute, re.compile(_LEAD_IN + f"(?:{pattern})", re.IGNORECASE))
        for kind, attribute, pattern in listed
    )


_AM = rf"i(?:\s+am|['’]?m) {_OFTEN}"
_HAVE = rf"(?:(?:i|we)(?:\s+have|['’]ve)|i|we) {_OFTEN}"
_DAY = "day|morning|afternoon|evening|night|week|weekend|month|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_TOLD = (
    "answer|reply|respond|use|write|call|address|speak|talk|give|include|explain|ask|mention|suggest|recommend|send|show"
    "|tell|remind|translate|assume|keep|format|quote|cite|schedule|book|order"
)
"""What users tell an assistant to do always or never."""
ENGLISH = _rules(
    ("identity", "name", rf"(?:my (?:full |first )?name(?: is|['’]s)|call me|{_AM}called|i go by) (?!not\b){_NAME}"),
    # a correction is valid from then on, like everything said later
    ("identity", "name", rf"(?:it['’]s|it is|my name is|{_AM})?\s*not {_PROPER},? but {_PROPER}\W*$"),
    ("identity", "name", rf"(?:it['’]s|it is) {_PROPER},? not {_PROPER}\W*$"),
    (
        "identity",
        "home_city",
        rf"(?:{_AM}{_PROPER}(?:,| and) |{_HAVE}moved[:;,] )?i {_OFTEN}(?:live|reside) (?:in|near|at|outside)\b",
    ),
    ("identity", "home_city", rf"{_HAVE}moved (?:back )?(?:to|from [\w ]{{1,30}} to)\b"),
    ("identity", None, rf"(?:i|we) {_OFTEN}live with\b|{_HAVE}(?:speak|drive an?|ride an?) {_PROPER}|{_AM}learning\b"),
    (
        "event",
        None,
        rf"{_HAVE}(?:got (?:engaged|married|divorced|promoted|fired|laid off|the job|a new job)|accepted an? (?:new )?"
        rf"(?:job|offer|position)|(?:quit|left|lost) my job|broke up with|had a baby|adopted an?|bought an? (?:house"
        r"|flat|apartment|car|dog|cat))\b",
    ),
    ("identity", None, rf"{_AM}(?:originally )?from (?:{_PROPER}|the\b)"),
    ("identity", "age", rf"{_AM}\d{{1,3}}(?:\W*$| years? old)"),
    ("identity", "employer", rf"i {_OFTEN}work (?:at|for)\b"),
    ("identity", "job", rf"i {_OFTEN}work as\b|{_AM}working as\b"),
    ("identity", None, rf"i {_OFTEN}(?:work in|work from home|work with|study|teach|own|volunteer)\b"),
    (
        "identity",
        None,
        r"i (?:used to (?:work|live|play|have|own|teach)|grew up|was (?:born|raised)|graduated)\b",
    ),
    ("identity", None, rf"{_AM}an? (?!(?:bit|little|lot|few|huge|big|fan|idiot|mess|wreck|tad|while)\b)"),
    (
        "identity",
        None,
        rf"{_AM}(?:newly )?(?:married|engaged|divorced|widowed|single|retired|unemployed|self-employed|disabled|deaf"
        r"|blind|diabetic|pregnant|left-handed|colou?r-?blind|in (?:college|(?:high |grad )?school|the military))\b",
    ),
    (
        "identity",
        None,
        r"my (?P<attribute>(?:phone|mobile|cell)(?: number)?|e-?mail(?: address)?|(?:home )?address|birthday|job"
        r"|employer|surname|last name|nationality)(?: is|['’]s) (?:now )?\S",
    ),
    (
        "relation",
        None,
        rf"(?:my|our) (?:\w+ )?(?:{PEOPLE})(?: \w+)?(?:['’]s| is| are| was| has| have| works?| lives?| lived| loves?"
        r"| likes?| died| passed| used to| teaches| owns?)\b",
    ),
    (
        "relation",
        None,
        rf"{_HAVE}(?:have|got|had)?\s?(?:an?|one|two|three|four|five|six|\d+|no|some|many|several)(?: \w+)? "
        rf"(?:{PEOPLE}|brothers|sisters|sons|daughters)\b",
    ),
    (
        "constraint",
        None,
        rf"{_AM}(?:severely |very |highly )?(?:allergic to|(?:lactose|gluten)[ -]intolerant|vegan|vegetarian|afraid of"
        r"|scared of)\b",
    ),
    (
        "constraint",
        None,
        rf"{_HAVE}(?:have )?(?:an? )?(?:\w+ )?(?:allergy|allergies|diabetes|asthma|epilepsy)\b",
    ),
    (
        "constraint",
        None,
        rf"i {_OFTEN}(?:do not|don['’]?t|cannot|can['’]?t|never) (?:eat|drink|drive|swim|fly|smoke|cook"
        r"|have (?:a car|kids|any kids|children|pets))\b",
    ),
    ("preference", None, rf"my (?:\w+ )?(?P<attribute>favou?rite {_NAME}(?: {_NAME})??) (?:is|are)\b"),
    (
        "preference",
        None,
        rf"i {_OFTEN}(?:love|like|hate|prefer|enjoy|adore|dislike|can['’]?t stand|collect|(?:don['’]?t|do not) like)\s+"
        rf"{_NOT_THINGS}",
    ),
    (
        "preference",
        None,
        rf"(?:i|we) {_OFTEN}(?!(?:have|think|hope|don['’]?t|do) ){_NAME} (?:[\w ]{{1,30}} )?every (?:{_DAY})s?\b",
    ),
    ("preference", None, rf"(?:from now on,? )?(?:always|never) (?:{_TOLD})\b|from now on,? (?:{_TOLD})\b"),
    (
        "preference",
        None,
        rf"(?:answer|reply|respond|write|speak|talk) (?:to me )?(?:only )?in (?:{_PROPER}|short|simple|plain)",
    ),
    (
        "plan",
        None,
        rf"(?:{_AM}|we(?: are|['’]re) )(?:flying|travell?ing|driving|moving) (?:back )?"
        rf"(?:to|from [\w ]{{1,30}} to) {_PROPER}",
    ),
    ("plan", None, rf"{_AM}planning (?:an?|my|the|our) {_THING}"),
    (
        "plan",
        None,
        r"(?:i|we)(?: have|['’]ve)? (?:just |already )?(?:cancell?ed|postponed|called off|booked) (?:an?|my|the|our) "
        rf"{_THING}",
    ),
    (
        "plan",
        None,
        rf"{_AM}(?:planning (?:on|to)|moving to|getting married|expecting a|starting (?:a new|my|at)|saving for)\b",
    ),
)
GERMAN = _rules(
    ("identity", "name", rf"(?:ich hei(?:ß|ss)e|mein name ist|nenn(?:en sie)? mich) {_NAME}"),
    (
        "identity",
        "home_city",
        r"ich (?:wohne|lebe) (?:jetzt )?in\b|ich bin (?:jetzt )?(?:von \w+ )?nach \w+ (?:um)?gezogen\b",
    ),
    ("identity", "employer", r"ich arbeite (?:jetzt )?(?:bei|für)\b"),
    ("identity", "job", r"ich arbeite (?:jetzt )?als\b"),
    ("identity", "age", r"ich bin \d{1,3}(?: jahre alt|\W*$)"),
    (
        "relation",
        None,
        r"meine? (?:frau|mann|tochter|sohn|mutter|vater|bruder|schwester|kinder|hund|katze|freundin|partner(?:in)?) "
        r"(?:ist|heißt|sind|hat|haben|arbeitet|lebt|wohnt)\b",
    ),
    (
        "constraint",
        None,
        r"ich bin (?:\w+ )?allergisch gegen\b|ich bin (?:vegetarier|veganer|diabetiker)(?:in)?\b"
        r"|ich (?:esse|trinke|vertrage) keine?n?\b",
    ),
    ("preference", None, r"meine? (?P<attribute>lieblings\w+) (?:ist|sind)\b"),
)
FRENCH = _rules(
    ("identity", "name", rf"(?:je m['’]appelle|mon nom est|appelez-moi|appelle-moi) {_NAME}"),
    (
        "identity",
        "home_city",
        r"j['’]habite (?:maintenant )?(?:à|en|au)\b|je vis (?:à|en|au)\b|j['’]ai déménagé (?:de \w+ )?à\b",
    ),
    ("identity", "employer", r"je travaille (?:maintenant )?(?:chez|pour)\b"),
    ("identity", "job", r"je travaille (?:maintenant )?comme\b"),
    ("identity", "age", r"j['’]ai \d{1,3} ans\b"),
    (
        "relation",
        None,
        r"(?:ma|mon|mes) (?:femme|mari|fille|fils|mère|père|frère|sœur|enfants|chien|chat|copine|copain) "
        r"(?:est|s['’]appelle|sont|a|ont|travaille|vit|habite)\b",
    ),
    (
        "constraint",
        None,
        r"je suis (?:très )?allergique (?:à|aux?)\b|je suis (?:végétarien(?:ne)?|végane|diabétique)\b"
        r"|je ne (?:mange|bois) (?:pas|jamais)\b",
    ),
    ("preference", None, r"(?:mon|ma) (?P<attribute>\w+ préférée?) (?:est|sont)\b"),
)
SPANISH = _rules(
    ("identity", "name", rf"(?:me llamo|mi nombre es|llámame) {_NAME}"),
    ("identity", "home_city", r"(?:yo )?(?:ahora )?vivo (?:ahora )?en\b|me (?:he mudado|mudé) (?:de \w+ )?a\b"),
    ("identity", "employer", rf"(?:yo )?trabajo (?:ahora )?(?:en|para) {_PROPER}"),
    ("identity", "job", r"(?:yo )?trabajo (?:ahora )?(?:como|de)\b"),
    ("identity", "age", r"tengo \d{1,3} años\b"),
    (
        "relation",
        None,
        r"mis? (?:mujer|esposa|esposo|marido|hijas?|hijos?|madre|padre|hermano|hermana|perro|gato|novia|novio) "
        r"(?:es|se llama|son|tienen?|trabajan?|viven?)\b",
    ),
    (
        "constraint",
        None,
        r"soy (?:muy )?alérgic[oa] al?\b|soy (?:vegetarian|vegan|diabétic|cel[ií]ac)[oa]\b|no (?:como|bebo) (?!nada)\w",
    ),
    ("preference", None, r"mi (?P<attribute>\w+ favorit[oa]) (?:es|son)\b"),
)
ITALIAN = _rules(
    ("identity", "name", rf"(?:mi chiamo|il mio nome è|chiamami) {_NAME}"),
    ("identity", "home_city", r"(?:ora )?(?:vivo|abito) (?:ora )?(?:a|in)\b|mi sono trasferit[oa] (?:da \w+ )?a\b"),
    ("identity", "employer", r"(?:ora )?lavoro (?:ora )?(?:per|presso)\b"),
    ("identity", "job", r"(?:ora )?lavoro (?:ora )?come\b"),
    ("identity", "age", r"ho \d{1,3} anni\b"),
    (
        "relation",
        None,
        r"(?:i miei|le mie|il mio|la mia|mi[oa]) (?:moglie|marito|figlia|figlio|figli|madre|padre|fratello|sorella|cane"
        r"|gatto|ragazza|ragazzo) (?:è|si chiama|sono|ha|hanno|lavora|vive)\b",
    ),
    (
        "constraint",
        None,
        r"sono (?:molto )?allergic[oa] (?:a|al|alle|ai)\b|sono (?:vegetarian|vegan|celiac|diabetic)[oa]\b"
        r"|non (?:mangio|bevo) (?!niente|nulla)\w+",
    ),
)
PORTUGUESE = _rules(
    ("identity", "name", rf"(?:(?:eu )?me chamo|chamo-me|(?:o )?meu nome é) {_NAME}"),
    (
        "identity",
        "home_city",
        r"(?:eu )?(?:agora )?(?:moro|vivo) (?:agora )?(?:em|no|na)\b|(?:eu )?(?:me mudei|mudei-me) (?:de \w+ )?para\b",
    ),
    ("identity", "job", r"(?:eu )?trabalho (?:agora )?como\b"),
    ("identity", "age", r"(?:eu )?tenho \d{1,3} anos\b"),
    (
        "relation",
        None,
        r"(?:a minha|o meu|minha|meus?) (?:mulher|esposa|marido|filha|filhos?|mãe|pai|irmão|irmã|cachorro|cão|gato"
        r"|namorada|namorado) (?:é|se chama|são|tem|têm|trabalha|mora|vive)\b",
    ),
    (
        "constraint",
        None,
        r"(?:eu )?sou (?:muito )?alérgic[oa] (?:a|ao|à)\b|(?:eu )?sou (?:vegetarian|vegan|celíac|diabétic)[oa]\b"
        r"|(?:eu )?não (?:como|bebo) (?!nada)\w+",
    ),
)
DUTCH = _rules(
    ("identity", "name", rf"(?:ik heet|mijn naam is|noem me) {_NAME}"),
    ("identity", "home_city", r"ik woon (?:nu )?in\b|ik ben (?:net )?(?:van \w+ )?naar \w+ verhuisd\b"),
    ("identity", "employer", r"ik werk (?:nu )?(?:bij|voor)\b"),
    ("identity", "job", r"ik werk (?:nu )?als\b"),
    ("identity", "age", r"ik ben \d{1,3}(?: jaar\b|\W*$)"),
    (
        "relation",
        None,
        r"mijn (?:vrouw|man|dochter|zoon|moeder|vader|broer|zus|kinderen|hond|kat|vriendin|vriend) "
        r"(?:is|heet|zijn|heeft|hebben|werkt|woont)\b",
    ),
    (
        "constraint",
        None,
        r"ik ben (?:erg )?allergisch voor\b|ik ben (?:vegetariër|veganist|diabeet)\b|ik (?:eet|drink) geen\b",
    ),
)
RULES = (*ENGLISH, *GERMAN, *FRENCH, *SPANISH, *ITALIAN, *PORTUGUESE, *DUTCH)


def first_person(messages: Sequence[EpisodeMessage]) -> tuple[Fact, ...]:
    """Return the users' sentences that a rule fits, whole, in order and each once. Linear in the messages."""
    found: dict[tuple[str, str], Fact] = {}
    for message in messages:
        if message.role == "user":
            for fact in _facts(message):
                found.setdefault((fact.user_id, fact.statement.casefold()), fact)
    return tuple(found.values())[-MOST_FACTS:]


def _facts(message: EpisodeMessage) -> Iterator[Fact]:
    for sentence in sentences_of(message.content):
        if len(sentence) <= STATEMENT_CHARACTERS and (read := kind_of(sentence)):
            kind, attribute = read
            yield Fact(
                statement=sentence,
                kind=kind,
                attribute=attribute,
                user_id=message.user_id,
                said_by="user",
                message_ids=(message.id,),
            )


def kind_of(sentence: str) -> tuple[FactKind, str | None] | None:
    """Return the kind and attribute of a statement about oneself; None if the sentence says nothing lasting."""
    if is_question(sentence):
        return None
    for rule in RULES:
        if fits := rule.pattern.match(sentence):
            named = fits.groupdict()
            name = named.get("attribute") or (f"plan {named['plan']}" if "plan" in named else rule.attribute)
            return rule.kind, name and re.sub(r"\W+", "_", name.casefold()).strip("_")
    return None
