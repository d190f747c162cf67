"""Detectors of entities with a recognizable format. Each reads a folded text and yields spans, in linear time.

Telephone numbers are found with a country code, or as certain countries write them, by the metadata of `phonenumbers`.
Its `PhoneNumberMatcher` is linear too, but mistakes order numbers, ISBNs and dates for telephone numbers: on the
labelled texts its precision is 0.70, and it takes 0.8 ms per text where this takes 0.05 ms and makes no mistake.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from ipaddress import ip_address
from itertools import accumulate
from typing import NamedTuple

from phonenumbers import NumberParseException, PhoneMetadata, is_possible_number, parse
from stdnum import luhn, numdb
from stdnum.iso7064 import mod_97_10

from afterword_text.language import pattern
from afterword_text.redaction import API_KEY, CARD, EMAIL, IBAN, IP, URL_SECRET

Spans = Iterator[tuple[int, int]]

_LETTER = r"0-9A-Za-z\u00c0-\u024f\u0370-\u052f"
"""Latin, Greek and Cyrillic, which are written with spaces between words."""
_LABEL = rf"[{_LETTER}](?:[{_LETTER}-]{{0,61}}[{_LETTER}])?"
_TOP = r"(?:xn--[0-9A-Za-z-]{2,59}|[A-Za-z\u00c0-\u024f\u0370-\u052f]{2,24})"
_LOCAL = rf"[{_LETTER}_](?:[{_LETTER}!#$%&'*+^_`{{|}}~.-]{{0,63}}+)"
_EMAIL = re.compile(rf"{_LOCAL}@(?:{_LABEL}\.){{1,8}}{_TOP}(?![{_LETTER}@])")
_FOREIGN = r"[^\x00-\x2f\x3a-\x40\x5b-\x60\x7b-\xbf\u2000-\u206f\u3001-\u3004\u3008-\u3020\u3030]"
"""A letter or mark of any script."""
_FOREIGN_EMAIL = re.compile(
    rf"(?:{_LOCAL}|(?<!{_FOREIGN})(?:{_FOREIGN}|[._+-]){{1,64}}+(?<![A-Za-z]))"
    rf"@(?:(?:{_FOREIGN}|-){{1,63}}\.){{1,8}}(?:{_TOP}(?![{_LETTER}])|{_FOREIGN}{{2,24}})"
)
"""An address in any script. Where words are written without spaces, those around an address may be taken for parts."""
_GAP = r"[ \t_/]{0,3}"
_AT = rf"(?:{_GAP}[\[({{<]\s?(?:at|ät|@|arroba|arobase|chiocciola|собака)\s?[\])}}>]{_GAP}|\(a\))"
_DOT = rf"(?:{_GAP}[\[({{]\s?(?:dot|\.|punkt|punto|point|ponto|точка)\s?[\])}}]{_GAP})"
_SPOKEN_AT = "(?:at|ät|arroba|arobase|chiocciola)"
_SPOKEN_DOT = "(?:dot|punto|point|ponto|punkt)"
_SPOKEN_TOP = "(?:com|org|net|edu|gov|info|biz|dev|app|io|de|fr|es|nl|pl|uk|eu|co|ch|br|ru|jp|cn|ca|au|example)"
"""Common domains that are not common words: "look at it dot by dot" has no address."""
_SPACE = r"[ \t]{1,3}"
_SIGN = r"[ \t]?[_/.-]{1,2}[ \t]?"
_SPACED_DOT = rf"(?:{_SPACE}{_SPOKEN_DOT}{_SPACE}|\.|[ \t_/]{{1,3}}\.{_GAP})"
"""A dot is not followed by a space alone, as at the end of a sentence."""
_SPELLED = re.compile(
    rf"[{_LETTER}._+-]{{1,64}}+(?:{_AT}|@){_LABEL}(?:(?:{_DOT}|\.){_LABEL}){{0,4}}(?:{_DOT}|\.){_TOP}(?![{_LETTER}])"
    rf"|[{_LETTER}._+-]{{1,64}}+(?:{_SPACE}{_SPOKEN_AT}{_SPACE}{_LABEL}(?:{_SPACE}{_SPOKEN_DOT}{_SPACE}{_LABEL}){{0,2}}"
    rf"{_SPACE}{_SPOKEN_DOT}{_SPACE}|{_GAP}@{_GAP}{_LABEL}(?:{_SPACED_DOT}{_LABEL}){{0,3}}{_SPACED_DOT}){_SPOKEN_TOP}(?![{_LETTER}])"
    rf"|[{_LETTER}+]{{1,64}}+{_SIGN}{_SPOKEN_AT}{_SIGN}[{_LETTER}]{{1,63}}+"
    rf"(?:{_SIGN}{_SPOKEN_DOT}{_SIGN}[{_LETTER}]{{1,63}}+){{0,2}}{_SIGN}{_SPOKEN_DOT}{_SIGN}{_SPOKEN_TOP}(?![{_LETTER}])"
    rf"|(?<![{_LETTER}])(?:[{_LETTER}][ \t_]{{1,3}}){{2,64}}@(?:[ \t_]{{1,3}}[{_LETTER}]){{1,40}}"
    rf"(?:[ \t_]{{1,3}}\.(?:[ \t_]{{1,3}}[{_LETTER}]){{2,20}}){{1,4}}(?![{_LETTER}])",
    re.IGNORECASE,
)
"""An address with words or spaces for its signs, or with spaces between all letters."""
_SPELLED_SIGN = re.compile(
    rf"{_AT}|{_DOT}|[ \t_/.-]{_SPOKEN_DOT}[ \t_/.-]|[ \t_/]@|@[ \t_/]|@[^\s@]{{1,64}} ", re.IGNORECASE
)
"""Most texts have none of these."""
_FILE = re.compile(r"\.(?:png|jpe?g|gif|svg|webp|css|js|ts|py|md|txt|json|html?)\Z", re.IGNORECASE)
_PATHS = re.compile(r"/[^/]*/")
_REPOSITORY = re.compile(r":[\w~/]")

_SEPARATOR = r"[ \t./_·•*~-]"
"""Between the groups of a card's number, also as people disguise it."""
_DIGIT_RUN = re.compile(rf"(?<![{_LETTER}_])(?<!\d[.,])\d(?:{_SEPARATOR}{{0,3}}\d){{12,}}+")
_GOES_ON = re.compile(rf"[{_LETTER}_]")
_GROUP = re.compile(r"\d+")
_EVEN_GROUPS = re.compile(
    rf"(?<![{_LETTER}_])(?<!\d{_SEPARATOR})(?:\d(?:{_SEPARATOR}{{1,3}}\d(?!\d)){{14,18}}"
    rf"|\d\d(?:{_SEPARATOR}{{1,3}}\d\d(?!\d)){{6,8}}(?:{_SEPARATOR}{{1,3}}\d)?"
    rf"|\d{{3}}(?:{_SEPARATOR}{{1,3}}\d{{3}}(?!\d)){{4,5}}(?:{_SEPARATOR}{{1,3}}\d{{1,2}})?)(?!{_SEPARATOR}{{0,3}}[\d{_LETTER}_])"
)
"""A number as single digits, pairs or threes, all of them. The last group may be shorter."""
CARD_DIGITS = range(13, 20)
_ISSUER = re.compile(
    r"4(?:.{12}|.{15}|.{18})|5[1-5].{14}|2(?:22[1-9]|2[3-9].|[3-6]..|7[01].|720).{12}|3[47].{13}|3(?:0[0-5]|[689].).{11,16}"
    r"|35.{14,17}|6(?:011|5..|4[4-9].).{12,15}|62.{14,17}|(?:50|5[6-9]|6.).{11,17}"
)
"""First digits and lengths of Visa, Mastercard, American Express, Diners, JCB, Discover, UnionPay and Maestro."""
ISSUERS_DIGITS = frozenset("23456")

_ANY_SIGNS = r"[\W_]{0,3}"
_IBAN_START = re.compile(rf"(?<![A-Za-z0-9])([A-Za-z]){_ANY_SIGNS}([A-Za-z])(?:{_ANY_SIGNS}[0-9]){{2}}")
_BBAN = re.compile(r"(\d+)!([nac])")
_NOT_IN_IBAN = re.compile("[^0-9A-Za-z]")
_BBAN_CHARACTERS = {"n": "[0-9]", "a": "[A-Z]", "c": "[0-9A-Z]"}

_IPV4 = re.compile(rf"(?<![{_LETTER}_.-])(?:\d{{1,3}}\.){{3}}\d{{1,3}}(?![{_LETTER}_-]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]{2,39}+(?:\.\d{1,3}){0,3}(?![\w:])")
_VERSION = re.compile(
    r"(?:\bv|\bversion|\bver\.?|\brelease|\bbuild|\bkernel|\bfirmware|\bsection|\bchapter)[ :.]{0,2}\Z", re.IGNORECASE
)
LOOKED_BACK = 12

_URL = re.compile(r"://[^\s<>\"'`]++")
_USERINFO = re.compile(
    r"://(?:([^\s<>\"'`/?#@:]{0,256}+:[^\s<>\"'`/?#]{1,256})|(?=[^\s/?#@]{0,256}\d)([\w.~-]{20,256}+))@"
)
"""A name and a password, which may contain `@`, or a token alone."""
_LOGIN = re.compile(
    r"-(?<!\S-)(?:(?:u|-user)[ =]?[\"']?(?!\d*:\d+(?![^\s\"']))([^\s:\"']{0,256}+:[\"']?[^\s\"']{1,256}+)"
    r"|p[\"']?(?![$<{])(?=[^\s\"']{0,256}\d)(?=[^\s\"']{0,256}[A-Za-z])([^\s\"'/:=]{6,256}+)(?![/:=]))"
)
"""The login of a command: `curl -u name:password`, `mysql -ppassword`. Two numbers are a user and a group."""
_PAIR = re.compile(r"[?&#;]([A-Za-z0-9_.-]{1,64})=([^\s<>\"'`&#;]++)")
"""A parameter of an address, or of the connection to a database."""
_SECRET_NAME = re.compile(
    r".*(?:token|secret|passw(?:or)?d|pwd|api_?key|apikey|access_?key|signature|credential|jwt|hmac|otp|auth(?:orization)?)"
    r"|sig|x-amz-security-token|client_?secret|private_?key",
    re.IGNORECASE,
)
_MAYBE_NAME = re.compile(r"\w*key|code|[htks]|sid|session(?:_?id)?|state|ticket|invite|nonce|hash|share", re.IGNORECASE)
_PATH = re.compile(
    r"hooks\.slack\.com/services/([\w/-]{20,})|(?:\bhooks?\.[\w.-]+|/(?:web)?hooks?\w{0,4})/([\w@/-]{16,})"
    r"|api\.telegram\.org/bot(\d{5,}:[\w-]{20,})"
    r"|/(?:reset|verify|confirm|invite|magic|login|activate|unsubscribe|share|s)[\w-]{0,24}/([A-Za-z0-9_~.-]{16,})"
    r"|/(?:(?:key|token)/|private-)([A-Za-z0-9_~.-]{16,})",
    re.IGNORECASE,
)
LEAST_SECRET = 8

_LONG_WORD = re.compile(r"[A-Za-z0-9_\-./+=~]{14}")
"""No key without a label is shorter than this."""
_PASSWORDS = pattern("redaction", "passwords")
_LABELS = re.compile(rf"key|token|secret|api|pass\b|pwd?\b|cl[ée]|chiave|chave|密钥|令牌|{_PASSWORDS}", re.IGNORECASE)
_KNOWN_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:sk-[A-Za-z0-9_-]{20,}+|[spr]k_(?:live|test)_[A-Za-z0-9]{10,}+|gh[pousr]_[A-Za-z0-9]{30,}+"
    r"|github_pat_\w{22,}+|gl(?:pat|dt|rt|cbt|ft|ptt|imt|soat|agent)-[\w-]{20,}+|xox[abeoprs]-[\w-]{10,}+|xapp-[\w-]{20,}+"
    r"|A(?:KIA|SIA|ROA|IDA)[A-Z0-9]{16}(?![A-Za-z0-9])|AIza[\w-]{35}|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+"
    r"|SG\.[\w-]{16,64}\.[\w-]{16,}+|npm_[A-Za-z0-9]{30,}+|pypi-[\w-]{16,}+|hf_[A-Za-z0-9]{30,}+|dop_v1_[0-9a-f]{40,}+"
    r"|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}|key-[0-9a-f]{32}|whsec_[\w+/=]{20,}+|lin_api_\w{30,}+|r8_\w{30,}+"
    r"|gsk_\w{30,}+|xai-\w{30,}+|pplx-\w{30,}+|sq0[a-z]{3}-[\w-]{20,}+|NRAK-[A-Z0-9]{20,}+|[a-z]{2,10}_pat_\w{16,}+"
    r"|\d{8,10}:[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])|[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}+"
    r"|LTAI[A-Za-z0-9]{12,}+|1//0[\w-]{40,}+|(?:pat-[a-z]{2,4}\d|api|sdk|access-(?:sandbox|development|production))-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    r"|ntn_[A-Za-z0-9]{40,}+|secret_[A-Za-z0-9]{43}(?![A-Za-z0-9])|dapi[0-9a-f]{32}(?:-\d)?(?![0-9a-f])"
    r"|eyJ[\w-]{8,300}+\.[\w-]{8,8000}+(?:\.[\w-]{8,}+)?)"
)
_TOKEN = re.compile(
    r"(?<![\w/.=&?%@#+~:-])(?=[A-Za-z0-9_.:/~+=-]*?[A-Za-z0-9_-]{20})[A-Za-z0-9][A-Za-z0-9_./+=~:-]{19,}+(?![\w@])",
    re.ASCII,
)
_RUN = re.compile("[A-Za-z0-9]+")
_CHANGE = re.compile("(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]")
_HEX = re.compile("[0-9a-f]+|[0-9A-F]+")
_HASH = re.compile("(?:sha-?[0-9]++(?!~)|md5|etag|0x)", re.IGNORECASE)
LEAST_RANDOM, LEAST_BARE = 20, 24
"""Fewest characters of a random run in a token, after a prefix such as `figd_` and without one."""
LEAST_BASE64 = 60
"""Fewest letters and digits of a word with several slashes that is not a path."""
CHANGES_SHARE, CHANGES_SHARE_WITHOUT_DIGITS = 0.25, 0.4
"""Changes between capitals, small letters and digits per character. Random runs have about 0.5, names fewer."""
CHANGES_SHARE_OF_PARTS = 0.42
"""The same for a word of several parts, as in base64url. Names of models have up to 0.38."""
_HEX_AFTER_PREFIX = re.compile(r"[A-Za-z][A-Za-z0-9]*_(?:[0-9a-f]{32,}|[0-9A-F]{32,})")
_PRIVATE_KEY = re.compile(r"(?s)-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----.*?(?:-----END.*?(?:-----|\Z)|\Z)")
"""Up to its last line, or to the end of the text without one."""
_LABELLED_KEY = re.compile(
    r"(?:(?:api|access|secret|private|signing|encryption|auth|account|subscription|consumer)[ _-]?key|token|secret"
    r"|\bkey(?=\s[\"'`]?[0-9a-f-]{32})|api[ _-]?schlüssel|zugangsschlüssel"
    r"|cl[ée] (?:d['’ ])?api|clave (?:de )?api|chiave api|chave (?:de )?api|密钥|令牌)"
    r"[\"'`]?(?:\s{0,2}(?:is|ist|lautet|est|es|è|é|=|:|：|=>|:=|是|為|为|は|는|은)\s{0,2}|\s)[\"'`]?"
    r"(?:Bearer )?([A-Za-z0-9_\-./+=~!#$%&*?@^]{8,}+)",
    re.IGNORECASE,
)
_PASSWORD = re.compile(
    rf"(?:{_PASSWORDS}|\bp(?:ass|wd?)(?=\s?[:=]))"
    r"(?:[^\s\dA-Za-z]{0,3}\s{0,2}[:：=—–-]{0,2}|[^\n.!?;\d]{0,36}?(?:\s[^\s\d]{1,4}|['’]s|lautet|[:：=—–]))\s{0,2}[\"'`]?"
    r"(?<![A-Za-z\d_./+~!#$%&*?@^-])(?:(?=[^\s\d]{0,40}\d)|(?<=(?-i:[A-Z])=))([A-Za-z\d_./+=~!#$%&*?@^-]{6,}+)",
    re.IGNORECASE,
)
"""Matches a word with a digit that soon follows a word for a password, with at most a sign or a short word, such as a
verb, between them. In an environment, as in `PGPASSWORD=secret`, the word needs no digit."""
_AUTHORIZATION = re.compile(
    r"\b(?:(?:bearer|basic|apikey)[ :]{1,2}(?=[\w./+=~-]{16})|authorization\W{1,4}(?:[a-z-]+ )?)([\w./+=~-]{8,}+)",
    re.IGNORECASE | re.ASCII,
)
"""A header may have any word for its scheme before the credentials, such as `Token`, or none."""


def emails(text: str) -> Spans:
    """Find email addresses, also with `(at)` and `[dot]` in them."""
    if "@" in text:
        for match in _EMAIL.finditer(text):
            is_remote = match[0].startswith("git@") and _REPOSITORY.match(text, match.end())
            if not _FILE.search(match[0]) and not is_remote:
                yield match.span()
        if not text.isascii():
            yield from (match.span() for match in _FOREIGN_EMAIL.finditer(_EMAIL.sub(_blank, text)))
    if _SPELLED_SIGN.search(text):
        for match in _SPELLED.finditer(text):
            if not _EMAIL.fullmatch(match[0]) and not _FILE.search(match[0]):
                yield match.span()


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def cards(text: str) -> Spans:
    """Find card numbers: an issuer's first digits, its length, and a valid Luhn check digit."""
    for run in _DIGIT_RUN.finditer(text):
        groups = [match.span() for match in _GROUP.finditer(text, *run.span())]
        if _GOES_ON.match(text, run.end()):
            groups.pop()
        at = 0
        while at < len(groups):
            taken = _card_groups(text, groups[at : at + 5])
            if taken:
                yield groups[at][0], groups[at + taken - 1][1]
            at += taken or 1
    for even in _EVEN_GROUPS.finditer(text):
        digits = "".join(_GROUP.findall(even[0]))
        if _is_card(digits) and len({*even[0]} - {*digits}) == 1:
            yield even.span()


def _is_card(digits: str) -> bool:
    return len(digits) in CARD_DIGITS and bool(_ISSUER.fullmatch(digits)) and luhn.is_valid(digits)


def _card_groups(text: str, groups: list[tuple[int, int]]) -> int:
    """Return the largest number of groups that together make a card number; 0 if none do."""
    start, end = groups[0]
    if end - start < 4 or text[start] not in ISSUERS_DIGITS:
        return 0
    sizes = list(accumulate(end - start for start, end in groups))
    if not any(size in CARD_DIGITS for size in sizes):
        return 0
    digits = "".join(text[start:end] for start, end in groups)
    for count in range(len(groups), 0, -1):
        size = sizes[count - 1]
        if _is_card(digits[:size]):
            return count
    return 0


def ibans(text: str) -> Spans:
    """Find IBANs, which have their country's form and valid check digits."""
    for start in _IBAN_START.finditer(text):
        rest = iban_rest((start[1] + start[2]).upper()).match(text, start.end())
        if rest:
            compact = _NOT_IN_IBAN.sub("", text[start.start() : rest.end()]).upper()
            if mod_97_10.is_valid(compact[4:] + compact[:4]):
                yield start.start(), rest.end()


@cache
def iban_rest(country: str) -> re.Pattern[str]:
    """Return what follows the check digits of a country, from the registry in python-stdnum."""
    _, facts = numdb.get("iban").info(country)[0]
    parts = [(_BBAN_CHARACTERS[kind], count) for count, kind in _BBAN.findall(facts.get("bban", ""))] or [("(?!)", "1")]
    form = "".join(rf"(?:{_ANY_SIGNS}{character}){{{count}}}" for character, count in parts)
    return re.compile(form + "(?![A-Za-z0-9])", re.IGNORECASE)


def ips(text: str) -> Spans:
    """Find IPv4 and IPv6 addresses that identify somebody: not loopback, unspecified, netmasks or section numbers."""
    for match in _IPV4.finditer(text):
        if not _VERSION.search(text, max(0, match.start() - LOOKED_BACK), match.start()) and _is_somebodys(match[0]):
            yield match.span()
    if text.count(":") < 2:
        return
    for match in _IPV6.finditer(text):
        candidate = match[0].rstrip(":") if not match[0].endswith("::") else match[0]
        is_long = candidate.count(":") == 7 or "::" in candidate
        if is_long and any(c.isdigit() for c in candidate) and _is_somebodys(candidate):
            yield match.start(), match.start() + len(candidate)


def _is_somebodys(address: str) -> bool:
    if ":" not in address and (address.startswith("255.") or len(address) == 7):
        return False  # a netmask; 1.2.3.4 is a section, or a resolver that everybody uses
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return not (parsed.is_loopback or parsed.is_unspecified)


def url_secrets(text: str) -> Spans:
    """Find passwords, tokens and signatures in URLs and connection strings, and logins of commands such as `curl`."""
    for login in (*_LOGIN.finditer(text), *_USERINFO.finditer(text)):
        yield login.span(login.lastindex or 0)
    for url in _URL.finditer(text):
        yield from _secret_paths(text, *url.span())
    for pair in _PAIR.finditer(text):
        if _is_secret(pair[1], pair[2]):
            yield pair.start(2), pair.start(2) + len(pair[2].rstrip(").,;!?]}"))


def _secret_paths(text: str, at: int, end: int) -> Spans:
    for match in _PATH.finditer(text, at, end):
        number = match.lastindex or 1
        value = match[number].rstrip(".")
        if any(c.isdigit() for c in value) or number < 4:
            yield match.start(number), match.start(number) + len(value)


def _is_secret(name: str, value: str) -> bool:
    if _SECRET_NAME.fullmatch(name):
        return len(value) >= 4
    return bool(_MAYBE_NAME.fullmatch(name)) and len(value) >= 2 * LEAST_SECRET and is_random(value)


def api_keys(text: str) -> Spans:
    """Find keys of known services, tokens of any others, private keys, and whatever is called a key or a token."""
    if "-----BEGIN" not in text and not _LONG_WORD.search(text) and not _LABELS.search(text):
        return
    yield from (match.span() for whole in (_KNOWN_KEY, _PRIVATE_KEY) for match in whole.finditer(text))
    for match in _TOKEN.finditer(text):
        token = match[0].rstrip(".:/-=~")
        if is_token(token):
            yield match.start(), match.start() + len(token)
    for labelled in (_LABELLED_KEY, _PASSWORD, _AUTHORIZATION):
        for match in labelled.finditer(text):
            value = match[1].rstrip(".")
            if is_random(value) or (labelled is _PASSWORD and value.isalnum()):
                yield match.start(1), match.start(1) + len(value)


def is_token(word: str) -> bool:
    """Return whether a word is a token of an unlisted service, by its long random run, rather than a name or address.

    A hexadecimal word without a prefix counts as a hash, and a word that ends like a file counts as a file.
    """
    if "//" in word or _HASH.match(word) or _FILE.search(word):
        return False
    runs = _RUN.findall(word)
    run, joined = max(runs, key=len), "".join(runs)
    changes = len(_CHANGE.findall(joined))
    if _PATHS.search(word) and (len(joined) < LEAST_BASE64 or changes < CHANGES_SHARE_OF_PARTS * len(joined)):
        return False
    is_mixed = all(re.search(kind, joined) for kind in ("[a-z]", "[A-Z]", "[0-9]"))
    if _HEX_AFTER_PREFIX.fullmatch(word) or (
        is_mixed and len(joined) >= LEAST_BARE and changes >= CHANGES_SHARE_OF_PARTS * len(joined)
    ):
        return True
    is_bare = len(runs) == 1
    if len(run) < (LEAST_BARE if is_bare else LEAST_RANDOM) or (is_bare and _HEX.fullmatch(run)):
        return False
    digits = sum(c.isdigit() for c in run)
    share = CHANGES_SHARE if digits > 1 else CHANGES_SHARE_WITHOUT_DIGITS
    return digits < len(run) - 1 and len(_CHANGE.findall(run)) >= share * len(run)


def is_random(text: str) -> bool:
    """Return whether a text is more like a key than a word: it has both letters and digits."""
    return any(c.isdigit() for c in text) and any(c.isalpha() for c in text)


LEAST_DIGITS, MOST_DIGITS = 7, 15
"""ITU-T E.164 allows at most 15 digits including the country code; shorter numbers are not worth the false alarms."""
MOST_GROUPS = 8
MOST_STARTS = 8
"""Maximum number of places in one run of digits at which a number is looked for."""
SHORT_DIGITS, LONG_DIGITS = 8, 10
NORTH_AMERICA = ("US", "CA")
NEAR = 28
"""This many characters before a number are searched for a word that tells what it is."""

_SPACE, _SIGN = r"[ \u00a0\u202f]", r"[()\-/\u2010-\u2015\u2212\u00b7]"
_SEPARATOR = rf"(?:\.|{_SPACE}?{_SIGN}{{0,2}}{_SPACE}?)"
_PHONE_RUN = re.compile(rf"(?<![{_LETTER}_@#$€£¥%])\+?\(?\d(?:{_SEPARATOR}\d)*+")
_UNFINISHED = re.compile(rf"[{_LETTER}_%€$£¥]|[.,:]\d")
"""Text after a run of digits which shows that the last group belongs to something else: an amount, a time, a name."""
_DATE = re.compile(r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2}))(?![\d]|[-/.]\d)")
_CALLED, _NUMBERED = (
    re.compile(rf"\b(?:{pattern('redaction', kind)})\b|{pattern('redaction', f'{kind}_unspaced')}", re.IGNORECASE)
    for kind in ("called", "numbered")
)
_ANY_LETTER = re.compile(r"[^\W\d_]")
"""A letter; without one, none of these words can be there."""
_UNIT = re.compile(r"\s?(?:km|kg|mm|cm|ms|mb|gb|kb|eur|usd|gbp|chf|euros?|dollars?|percent|prozent|bytes?)\b", re.I)


class Country(NamedTuple):
    """How phone numbers are written in their own country."""

    region: str
    trunk: str
    """Prefix of a number inside the country, such as `0`; empty if there is none."""
    number: re.Pattern[str]
    """Matches numbers without `trunk`."""


class Written(NamedTuple):
    """A text that may be a number."""

    text: str
    parts: list[str]
    """The groups of digits."""
    digits: str
    """All digits."""
    before: str
    """The text before it, which may say what it is."""


class Phones:
    """Finds telephone numbers."""

    def __init__(self, regions: Iterable[str]) -> None:
        """`regions` are ISO 3166 codes of the countries whose numbers are found without a country code."""
        self._countries = [country(region) for region in regions]

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        for run in _PHONE_RUN.finditer(text):
            if run.end() - run.start() < LEAST_DIGITS:
                continue
            groups = [match.span() for match in _GROUP.finditer(text, run.start(), run.end())]
            if _UNFINISHED.match(text, run.end()):
                groups.pop()
            at = starts = 0
            follows = True
            while at < len(groups) and starts < MOST_STARTS:
                begin, taken = groups[at][0], 0
                while begin > run.start() and text[begin - 1] in "+(":
                    begin -= 1
                if text[begin] in "+(" or follows:
                    starts += 1
                    taken = self._taken(text, begin, groups[at : at + MOST_GROUPS])
                    follows = bool(taken)
                if taken:
                    yield begin, groups[at + taken - 1][1]
                at += taken or 1

    def _taken(self, text: str, begin: int, groups: list[tuple[int, int]]) -> int:
        """Return the largest number of groups that together make a telephone number; 0 if none do."""
        before = text[max(0, begin - NEAR) : begin]
        parts = [text[start:end] for start, end in groups]
        for count in range(len(parts), 0, -1):
            digits, end = "".join(parts[:count]), groups[count - 1][1]
            if not LEAST_DIGITS <= len(digits) <= MOST_DIGITS + 2:
                continue
            written = Written(text[begin:end], parts[:count], digits, before)
            if written.text.lstrip("(").startswith("+"):
                is_phone = is_international(digits)
            elif digits.startswith("00"):
                is_phone = (
                    is_international(digits[2:]) and len(digits) > LONG_DIGITS and _is_plausible(written, text, end)
                )
            else:
                is_phone = any(is_national(each, written) for each in self._countries) and _is_plausible(
                    written, text, end
                )
            if is_phone:
                return count
        return 0


def _is_plausible(written: Written, text: str, end: int) -> bool:
    return not (_DATE.match(written.text) or _UNIT.match(text, end) or leaning(written.before) < 0)


def leaning(before: str) -> int:
    """Return 1 if the last relevant word before a number is like "call", −1 if it is like "order", and 0 if there is
    none."""
    if not _ANY_LETTER.search(before):
        return 0
    called, numbered = (
        max((match.end() for match in pattern.finditer(before)), default=-1) for pattern in (_CALLED, _NUMBERED)
    )
    return (called > numbered) - (numbered > called)


@lru_cache
def country(region: str) -> Country:
    """Read a country's metadata. Raises: ValueError for an unknown code."""
    metadata = PhoneMetadata.metadata_for_region(region)
    if metadata is None:
        raise ValueError(f"{region!r} is not a country with telephone numbers")
    kinds = (
        metadata.fixed_line,
        metadata.mobile,
        metadata.toll_free,
        metadata.personal_number,
        metadata.voip,
        metadata.uan,
    )
    patterns = {kind.national_number_pattern for kind in kinds if kind and kind.national_number_pattern}
    # in some countries, such as Italy, the leading 0 is part of the number, so there is no trunk prefix
    trunk = "" if metadata.national_prefix == "1" else metadata.national_prefix or ""
    return Country(region, trunk, re.compile("|".join(f"(?:{pattern})" for pattern in sorted(patterns))))


def is_international(digits: str) -> bool:
    """Check the country code, and the number of digits after it; some people write a trunk 0 between them."""
    try:
        return is_possible_number(parse(f"+{digits}"))
    except NumberParseException:
        return False


def is_national(of: Country, written: Written) -> bool:
    """Check a number without a country code. It must look like a phone number or follow a word like "call"."""
    digits, parts = written.digits, written.parts
    if parts[0] == "0" and written.text[1:2] not in (" ", "("):
        return False  # a decimal fraction, or the ISBN of a book
    if of.region in NORTH_AMERICA:
        shape = [len(part) for part in parts]
        if len(digits) == LONG_DIGITS + 1 and digits[0] == "1":
            digits, shape = digits[1:], shape[1:] if shape[0] == 1 else [shape[0] - 1, *shape[1:]]
        looks_so = len(shape) > 1
        if looks_so and shape not in ([3, 3, 4], [3, 7]):
            return False
    elif len(digits) <= SHORT_DIGITS:
        return False
    elif of.trunk and digits.startswith(of.trunk):
        digits, looks_so = digits.removeprefix(of.trunk), of.trunk == "0" or len(parts) > 1
    else:
        looks_so = written.text.startswith("(") or (not of.trunk and digits.startswith("0"))
    return bool(of.number.fullmatch(digits)) and (looks_so or leaning(written.before) > 0)


DETECTORS: dict[str, Callable[[str], Spans]] = {
    URL_SECRET: url_secrets,
    API_KEY: api_keys,
    EMAIL: emails,
    IBAN: ibans,
    CARD: cards,
    IP: ips,
}
"""Detectors in order of precedence where they disagree; telephone numbers come after them."""
