"""What people say out of politeness and what they say when something is settled, in the languages we know it in.

Each entry is a piece of a regular expression; a language that is missing here only loses a hint.
"""

import re
from collections.abc import Iterable

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
"""Words of talk that are no stop words of written language, yet tell nothing."""


def _one_of(rows: Iterable[Iterable[str]]) -> str:
    return "|".join(piece for row in rows for piece in row)


GREETING = re.compile(
    rf"\W*(?:(?:{_one_of(_GREETINGS)})\b|{'|'.join(_GREETINGS_UNSPACED)})", re.IGNORECASE
)  # to be found where a sentence begins
OFFER_OF_HELP = re.compile(rf"\b(?:{_one_of(_OFFERS)})|{'|'.join(_OFFERS_UNSPACED)}", re.IGNORECASE)
COMMITMENT = re.compile(rf"\b(?:{_one_of(_COMMITMENTS)})\b|{'|'.join(_COMMITMENTS_UNSPACED)}", re.IGNORECASE)
