"""Finds facts without an LLM: sentences in which users say something lasting about themselves.

It prefers precision to recall. A rule is a pattern for the beginning of a sentence. The sentence's language need not be
known, because no rule fits a sentence in another language.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

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
    r"|great|true|fyi|please|(?:please )?(?:remember|note)(?: that)?|for the record|unfortunately|ja|nein|oui|non|sí|sì"
    r"|sim|übrigens|bitte|au fait|por cierto|comunque|trouwens)\b[,!.:]*\s+){0,3}"
)
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")
_NAME = r"[^\W\d_][\w'’-]*"
_PROPER = r"(?-i:[A-ZÀ-Þ])[\w'’-]*"
_OFTEN = (
    r"(?:(?:also|now|just|only|really|currently|recently|actually|mostly|usually|absolutely|already|do|finally)\s+)*"
)
_NOT_THINGS = (
    r"(?!(?:it|that|this|your?|u|them|those|these|how|when|what|so|em|her|him|mondays"
    r"|the (?:idea|sound|way|first|second|third|last|former|latter|new|old|other|one))\b)"
)
_PLACE = rf"(?:the |a |an )?(?:{_PROPER}|[^\W\d_]{{2,}}\W*$)"
_CALLED = rf"(?:{_PROPER}|(?!(?:wrong|missing|misspelled|incorrect|invalid)\b){_NAME}\W*$)"
_END = r"(?=\W*$|[,.;]| (?:and|und|et|y|e|en)\b)"
_FIRM = (
    rf"(?:(?:an?|the|my|our|eine?|eine[mnr]|une?|un[ao]|uma?|een) {_NAME}|{_PROPER}"
    rf"|(?!(?:free|nothing|home|all|now)\b){_NAME}\W*$)"
)
_FOOD = (
    r"(?!(?:nada|niente|nulla|antes|siempre|sempre|mucho|muito|molto|tanto|bem|bien|bene|hoy|hoje|oggi|más|mais|più|da|el|la|o|a|mi"
    r"|você|tú)\b)\w+"
)
_NOT_LIKE = r"(?! (?:une?|una|uma?|een|puedo|posso|siempre|sempre|antes|prima|altijd)\b)"
"""In the languages in which a job has no article, an article after "as" begins a comparison."""
_STATE = (
    r"(?:\d+ (?:jahre|ans|años|anni|anos|jaar)|(?:(?:une?|una|eine?|een|uma) )?(?:all?[eé]rg|ast?h?m|autis|diab"
    r"|[ée]pile|c[eé]l[ií]a|veg|tot|gestorben|mor[rt]|muert|overleden|dood|schwanger|enceinte|embarazad|incinta|gr[áa]vida"
    r"|zwanger)\w*)"
)
"""What somebody is or has for long. Most other words after these verbs name a mood, or form a tense with them."""
_THIS = r"(?! (?:it|th(?:is|at|ere|em|ese|ose)|here|you|for|how|on)\b)"
_THING = rf"(?P<plan>{_NAME}(?: (?!(?:in|on|for|next|this|with|because|and|but)\b){_NAME}){{0,4}})"


class Rule(NamedTuple):
    """The meaning of a sentence with this beginning."""

    kind: FactKind
    attribute: str | None
    """Name of the attribute, unless the pattern's group `attribute` or `plan` contains it."""
    pattern: re.Pattern[str]


_AM = rf"i(?:\s+am|['’]?m) {_OFTEN}"
_HAVE = rf"(?:(?:i|we)(?:\s+have|['’]ve)|i|we) {_OFTEN}"
_DAY = "day|morning|afternoon|evening|night|week|weekend|month|monday|tuesday|wednesday|thursday|friday|saturday|sunday"
_TOLD = (
    "answer|reply|respond|use|write|call|address|speak|talk|give|include|explain|ask|mention|suggest|recommend|send|show"
    "|tell|remind|translate|assume|keep|format|quote|cite|schedule|book|order"
)
"""What users tell an assistant to do always or never."""
_TABLE = rf"""
# English
identity   name      (?:my (?:full |first )?name(?: is|['’]s) (?!not\b){_CALLED}|(?:call me|{_AM}called|i go by)
    \s(?:{_PROPER}|{_NAME}\W*$))
# A correction is valid from then on, like everything said later.
identity   name      (?:it['’]s|it is|my name is|{_AM})?\s*not {_PROPER},? but {_PROPER}\W*$
identity   name      (?:it['’]s|it is) {_PROPER},? not {_PROPER}\W*$
identity   home_city (?:{_AM}{_PROPER}(?:,| and) |{_HAVE}moved[:;,] )?i {_OFTEN}(?:live|reside) (?:in|near|at
    |outside) (?:(?:an?|the|my|our) (?!past|moment)|{_PLACE})
identity   home_city {_HAVE}moved (?:back )?(?:to|from [\w ]{{1,30}} to) {_PLACE}
identity   -         (?:i|we) {_OFTEN}live with\b{_THIS}|{_HAVE}(?:speak|drive an?|ride an?) {_PROPER}
    |{_AM}learning (?:to |{_PROPER})
event      -         {_HAVE}(?:got (?:engaged|married|divorced|promoted|fired|laid off|the job|a new job)
    |accepted an? (?:new )?(?:job|offer|position)|(?:quit|left|lost) my job|broke up with|had a baby|adopted an?
    |bought an? (?:house|flat|apartment|car|dog|cat))\b
identity   -         {_AM}(?:originally )?from (?:the )?(?:{_PROPER}|north|south|east|west)
identity   age       {_AM}\d{{1,3}}(?:\W*$| years? old)
identity   employer  i {_OFTEN}work (?:at|for) (?!the (?:time|moment)\b){_FIRM}
identity   job       i {_OFTEN}work as (?:an?|the)\b|{_AM}working as\b
identity   -         i {_OFTEN}(?:work in|work from home|work with|study|teach|own|volunteer)\b{_THIS}
identity   -         i (?:used to (?:work|live|play|have|own|teach)|grew up|was (?:born|raised)(?! to)|graduated)\b
identity   -         {_AM}an? (?!(?:bit|little|lot|few|huge|big|fan|new|idiot|mess|wreck|tad|while|user|customer
    |client|subscriber)\b)
identity   -         {_AM}(?:newly )?(?:married|engaged|divorced|widowed|single|retired|unemployed|self-employed
    |disabled|deaf|blind|diabetic|pregnant|left-handed|colou?r-?blind|in (?:college|(?:high |grad )?school
    |the military))\b(?!-| to)
identity   phone     my (?:phone|mobile|cell)(?: number)?(?: is|['’]s) (?:now )?[+(]?\d
identity   email     my e-?mail(?: address)?(?: is|['’]s) (?:now )?\S+@
identity   address   my (?:home )?address(?: is|['’]s) (?:now )?(?:\d|{_PROPER})
identity   birthday  my birthday(?: is|['’]s) (?:on |in )?(?:the )?(?:\d|{_PROPER}|\w+ \d)
identity   job       my job(?: is|['’]s) (?:now )?(?:an?|as|at|in)\b
identity   -         my (?P<attribute>employer|surname|last name|nationality)(?: is|['’]s) (?:now )?{_PROPER}
relation   -         (?:my|our) (?:\w+ )?(?:{PEOPLE})(?:-in-law)?(?: (?-i:[A-ZÀ-Þ][a-zß-ÿ])\w*)?(?:['’]s (?:an?|in|at
    |from|called|named|allergic)\b| (?:(?:is|are|was|were)
    (?! (?:calling|waiting|asking|coming|going|here|there|on the|the one)\b)|(?:has|have)
    (?!n['’]?t| not| to| (?:an? )?(?:\w+ )?(?:question|problem|issue))|works?|lives?|lived|loves?|likes?|died|passed
    |used to|teaches|owns?)\b)
relation   -         {_HAVE}(?:have|got|had)?\s?(?:an?|one|two|three|four|five|six|\d+|no|some|many
    |several)(?: \w+)? (?:{PEOPLE}|brothers|sisters|sons|daughters)
    (?:\W*$|[,.;]| (?:and|or|in|who|named|called|with|from|at|aged|but|together|under|now|yet)\b)
constraint -         {_AM}(?:severely |very |highly )?(?:allergic to|(?:lactose|gluten)[ -]intolerant|vegan|vegetarian
    |(?:afraid|scared) of (?!\w+ing\b))\b
constraint -         i {_OFTEN}take \d[\d.,]* ?(?:mg|mcg|µg|ml|units?)\b
constraint -         {_HAVE}(?:have )?(?:an? )?(?:\w+ )?(?:allergy|allergies|diabetes|asthma|epilepsy)\b
constraint -         i {_OFTEN}(?:do not|don['’]?t|cannot|can['’]?t|never) (?:eat|drink|drive|swim|fly|smoke|cook
    |have (?:a car|kids|any kids|children|pets))\b{_THIS}(?! (?:traffic|the)\b)
preference -         my (?:\w+ )?(?P<attribute>favou?rite {_NAME}(?: {_NAME})??) (?:is|are)\b
preference -         (?:i|we) {_OFTEN}(?:love|like|hate|prefer(?! not\b)|enjoy|adore|dislike|can['’]?t stand|collect
    |(?:don['’]?t|do not) like)\s+{_NOT_THINGS}
preference -         (?:i|we) {_OFTEN}(?!(?:have|think|hope|don['’]?t
    |do) ){_NAME} (?:[\w ]{{1,30}} )?every (?:{_DAY})s?\b
preference -         (?:from now on,? )?(?:always|never) (?:{_TOLD})\b|from now on,? (?:{_TOLD})\b
preference -         (?:answer|reply|respond|write|speak|talk) (?:to me )?(?:only )?in (?:{_PROPER}|short|simple
    |plain)
plan       -         (?:{_AM}|we(?: are|['’]re) )(?:flying|travell?ing|driving|moving) (?:back )?(?:to
    |from [\w ]{{1,30}} to) {_PROPER}
plan       -         {_AM}planning (?:an?|my|the|our) {_THING}
plan       -         (?:i|we)(?: have|['’]ve)? (?:just |already )?(?:cancell?ed|postponed|called off|booked) (?:an?|my
    |the|our) {_THING}
plan       -         {_AM}(?:planning (?:on|to)|moving to (?:an?|my|our)|getting married|expecting a|saving for)\b
    |{_AM}starting (?:a new (?:job|school|business)
    |(?:at )?{_PROPER}|university|college)
# German
identity   name      (?:ich hei(?:ß|ss)e|mein name ist) {_CALLED}|nenn(?:en sie)? mich {_PROPER}
identity   home_city ich (?:wohne|lebe) (?:jetzt )?in (?:{_PROPER}|der (?:schweiz|türkei|ukraine)\b)
    |ich bin (?:jetzt )?(?:von \w+ )?nach \w+ (?:um)?gezogen\b
identity   employer  ich arbeite (?:jetzt )?(?:bei|für) (?:der )?{_FIRM}
identity   job       ich arbeite (?:jetzt )?als (?!erste|nächste)
identity   age       ich bin \d{{1,3}}(?: jahre alt|\W*$)
relation   -         meine? (?:frau|mann|tochter|sohn|mutter|vater|bruder|schwester|kinder|hund|katze|freundin
    |partner(?:in)?) (?:(?:ist|sind) {_PROPER}|(?:ist|sind|hat|haben) {_STATE}
    |heißt|arbeitet|lebt|wohnt)\b
constraint -         ich bin (?:\w+ )?allergisch gegen\b|ich bin (?:vegetarier|veganer|diabetiker)(?:in)?\b
    |ich (?:esse|trinke|vertrage) keine?n?\b
preference -         meine? (?P<attribute>lieblings\w+) (?:ist|sind)\b
# French
identity   name      (?:je m['’]appelle|mon nom est) {_CALLED}|appel(?:ez|le)-moi {_PROPER}
identity   home_city (?:j['’]habite|je vis) (?:maintenant )?(?:à|en|aux?) {_PROPER}
    |j['’]ai déménagé (?:de \w+ )?à {_PROPER}
identity   employer  je travaille (?:maintenant )?(?:chez|pour) {_FIRM}
identity   job       je travaille (?:maintenant )?comme\b{_NOT_LIKE}
identity   age       j['’]ai \d{{1,3}} ans\b{_END}
relation   -         (?:ma|mon|mes) (?:femme|mari|fille|fils|mère|père|frère|sœur|enfants|chien|chat|copine
    |copain) (?:(?:est|sont|a|ont) (?:très )?{_STATE}|s['’]appelle|travaille|vit|habite)\b
constraint -         je suis (?:très )?allergique (?:à|aux?)\b|je suis (?:végétarien(?:ne)?|végane|diabétique)\b
    |je ne (?:mange|bois) (?:pas|jamais) d(?:e |u |['’])
preference -         (?:mon|ma) (?P<attribute>\w+ préférée?) (?:est|sont)\b
# Spanish
identity   name      (?:me llamo|mi nombre es) {_CALLED}|llámame {_PROPER}
identity   home_city (?:yo )?(?:ahora )?vivo (?:ahora )?en {_PROPER}|me (?:he mudado|mudé) (?:de \w+ )?a {_PROPER}
identity   employer  (?:yo )?trabajo (?:ahora )?(?:en|para) {_PROPER}
identity   job       (?:yo )?trabajo (?:ahora )?como\b{_NOT_LIKE}
identity   age       tengo \d{{1,3}} años\b{_END}
relation   -         mis? (?:mujer|esposa|esposo|marido|hijas?|hijos?|madre|padre|hermano|hermana|perro|gato|novia
    |novio) (?:(?:es|son|está|tienen?|ha) {_STATE}|se llama|trabajan?|viven?)\b
constraint -         soy (?:muy )?alérgic[oa] al?\b|soy (?:vegetarian|vegan|diabétic|cel[ií]ac)[oa]\b|no (?:como
    |bebo) {_FOOD}
preference -         mi (?P<attribute>\w+ favorit[oa]) (?:es|son)\b
# Italian
identity   name      (?:mi chiamo|il mio nome è) {_CALLED}|chiamami {_PROPER}
identity   home_city (?:ora )?(?:vivo|abito) (?:ora )?(?:ad?|in) {_PROPER}
    |mi sono trasferit[oa] (?:da \w+ )?ad? {_PROPER}
identity   employer  (?:ora )?lavoro (?:ora )?(?:per|presso) {_FIRM}
identity   job       (?:ora )?lavoro (?:ora )?come\b{_NOT_LIKE}
identity   age       ho \d{{1,3}} anni\b{_END}
relation   -         (?:i miei|le mie|il mio|la mia|mi[oa]) (?:moglie|marito|figlia|figlio|figli|madre|padre|fratello
    |sorella|cane|gatto|ragazza|ragazzo) (?:(?:è|sono|ha|hanno) {_STATE}|si chiama|lavora|vive)\b
constraint -         sono (?:molto )?allergic[oa] (?:a|al|alle|ai)\b|sono (?:vegetarian|vegan|celiac|diabetic)[oa]\b
    |non (?:mangio|bevo) {_FOOD}
# Portuguese
identity   name      (?:(?:eu )?me chamo|chamo-me|(?:o )?meu nome é) {_CALLED}
identity   home_city (?:eu )?(?:agora )?(?:moro|vivo) (?:agora )?(?:em|no|na) {_PROPER}|(?:eu )?(?:me mudei
    |mudei-me) (?:de \w+ )?para (?:o |a )?{_PROPER}
identity   job       (?:eu )?trabalho (?:agora )?como\b{_NOT_LIKE}
identity   age       (?:eu )?tenho \d{{1,3}} anos\b{_END}
relation   -         (?:a minha|o meu|minha|meus?) (?:mulher|esposa|marido|filha|filhos?|mãe|pai|irmão|irmã|cachorro
    |cão|gato|namorada|namorado) (?:(?:é|são|está|tem|têm) {_STATE}|se chama|trabalha|mora|vive)\b
constraint -         (?:eu )?sou (?:muito )?alérgic[oa] (?:a|ao|à)\b|(?:eu )?sou (?:vegetarian|vegan|celíac
    |diabétic)[oa]\b|(?:eu )?não (?:como|bebo) {_FOOD}
# Dutch
identity   name      (?:ik heet|mijn naam is) {_CALLED}|noem me {_PROPER}
identity   home_city ik woon (?:nu )?in {_PROPER}|ik ben (?:net )?(?:van \w+ )?naar \w+ verhuisd\b
identity   employer  ik werk (?:nu )?(?:bij|voor) {_FIRM}
identity   job       ik werk (?:nu )?als\b{_NOT_LIKE}
identity   age       ik ben \d{{1,3}}(?: jaar(?: oud)?{_END}|\W*$)
relation   -         mijn (?:vrouw|man|dochter|zoon|moeder|vader|broer|zus|kinderen|hond|kat|vriendin
    |vriend) (?:(?:is|zijn|heeft|hebben) {_STATE}|heet|werkt|woont)\b
constraint -         ik ben (?:erg )?allergisch voor\b|ik ben (?:vegetariër|veganist|diabeet)\b|ik (?:eet
    |drink) geen\b
"""
"""Kind, attribute and pattern of each rule; a line that is indented continues the pattern."""


def _rules() -> Iterator[Rule]:
    for line in re.sub(r"\n +", "", _TABLE).splitlines():
        if line and not line.startswith("#"):
            kind, attribute, pattern = line.split(None, 2)
            compiled = re.compile(_LEAD_IN + f"(?:{pattern})", re.IGNORECASE)
            yield Rule(cast("FactKind", kind), None if attribute == "-" else attribute, compiled)


RULES = tuple(_rules())
_ANY_RULE = re.compile(
    f"{_LEAD_IN}(?:{'|'.join(_NAMED_GROUP.sub('(?:', rule.pattern.pattern.removeprefix(_LEAD_IN)) for rule in RULES)})",
    re.IGNORECASE,
)
"""Matches if a rule does: most sentences fit none, and are read once."""


def first_person(messages: Sequence[EpisodeMessage]) -> tuple[Fact, ...]:
    """Return the users' sentences that a rule fits, whole, in order and each once. Linear in the messages."""
    found: dict[tuple[str, str], Fact] = {}
    for message in messages:
        for sentence in sentences_of(message.content) if message.role == "user" else ():
            if len(sentence) <= STATEMENT_CHARACTERS and (read := kind_of(sentence)):
                kind, attribute = read
                fact = Fact(
                    statement=sentence,
                    kind=kind,
                    attribute=attribute,
                    user_id=message.user_id,
                    said_by="user",
                    message_ids=(message.id,),
                )
                found.setdefault((fact.user_id, fact.statement.casefold()), fact)
    return tuple(found.values())[-MOST_FACTS:]


def kind_of(sentence: str) -> tuple[FactKind, str | None] | None:
    """Return the kind and attribute of a statement about oneself; None if the sentence says nothing lasting."""
    if is_question(sentence) or not _ANY_RULE.match(sentence):
        return None
    for rule in RULES:
        if fits := rule.pattern.match(sentence):
            named = fits.groupdict()
            name = named.get("attribute") or (f"plan {named['plan']}" if "plan" in named else rule.attribute)
            return rule.kind, name and re.sub(r"\W+", "_", name.casefold()).strip("_")
    return None
