"""The messages that a hit shows, and the hit as a text for a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from textwrap import wrap

from afterword.recalling.passages import WINDOW, QueryWords
from afterword.streams.language import words
from afterword.streams.stores.index import Match, Recalled
from afterword.streams.stores.messages import MessageText
from afterword.streams.summarizer.prompt.fences import cleaned, indented
from afterword.streams.summarizer.sentences import ELLIPSIS, split_sentences
from afterword.streams.tokens import count_tokens

READ_CHARACTERS = 12_000
"""Characters of a matching message that are read."""
EXCERPT_CHARACTERS = 600
"""Characters of a message that are shown: of a longer one, some sentences."""
PIECE_CHARACTERS = 200
"""A longer sentence is shown in pieces."""
ANSWER_TOKENS = 2000
"""Tokens of all messages that an answer shows."""


def best_messages(texts: Mapping[str, MessageText], asked: QueryWords) -> dict[str, float]:
    """Find the WINDOW messages that have most of the query's words, each with their number. Linear in the texts."""
    counts = {message_id: float(_count(text.content, asked)) for message_id, text in texts.items()}
    best = sorted(filter(counts.get, counts), key=lambda message_id: -counts[message_id])[:WINDOW]
    return {message_id: counts[message_id] for message_id in best}


def matches_of(texts: Mapping[str, MessageText], weights: Mapping[str, float], asked: QueryWords) -> list[Match]:
    """Make the matches of a hit, best first, from its messages. Both mappings are by message id."""
    found = [
        Match(
            message_id=message_id,
            role=text.role,
            sent_at=text.sent_at,
            content=excerpt(text.content, asked),
            score=weights[message_id],
        )
        for message_id, text in texts.items()
    ]
    return sorted(found, key=lambda match: -match.score)


def excerpt(text: str, asked: QueryWords) -> str:
    """Return the text, or of a long one the sentence that has most words of the query, and those around it.

    At most EXCERPT_CHARACTERS, and an ellipsis where something is left out. Linear in the text.
    """
    sentences = [piece for sentence in split_sentences(text) for piece in wrap(sentence, PIECE_CHARACTERS)]
    if len(text) <= EXCERPT_CHARACTERS or not sentences:
        return text[:EXCERPT_CHARACTERS]
    counts = [_count(sentence, asked) for sentence in sentences]
    first = counts.index(max(counts))
    after, size, grows = first + 1, len(sentences[first]), True
    while grows:
        grows = False
        for at in (after, first - 1):
            if 0 <= at < len(sentences) and size + len(sentences[at]) < EXCERPT_CHARACTERS:
                first, after, size, grows = min(first, at), max(after, at + 1), size + len(sentences[at]) + 1, True
    before, behind = f"{ELLIPSIS} " if first else "", f" {ELLIPSIS}" if after < len(sentences) else ""
    return f"{before}{' '.join(sentences[first:after])}{behind}"


def _count(text: str, asked: QueryWords) -> int:
    return len(set(asked.matching(words(text)).values()))


def within_budget(hits: Sequence[Recalled]) -> list[Recalled]:
    """Keep the matches that ANSWER_TOKENS hold: the best one of each hit, hits in their order, then the second ones."""
    left = ANSWER_TOKENS
    kept: list[list[Match]] = [[] for _ in hits]
    for rank in range(max((len(hit.matches) for hit in hits), default=0)):
        for hit, shown in zip(hits, kept, strict=True):
            if rank < len(hit.matches) and (tokens := count_tokens(hit.matches[rank].content)) <= left:
                shown.append(hit.matches[rank])
                left -= tokens
    return [hit.model_copy(update={"matches": tuple(shown)}) for hit, shown in zip(hits, kept, strict=True)]


def hit_lines(hit: Recalled, clean: Callable[[str], str] = cleaned) -> Iterator[str]:
    """Show a hit to a model: what was said, where it is from, and the summary.

    Every line that the texts begin is ours, and their further lines are indented more than any of them. `clean`:
    prepares a foreign text.
    """
    for match in hit.matches:
        yield f"{match.sent_at:%Y-%m-%d}, {match.role}: {indented(clean(match.content))}"
    summary = indented(clean(hit.short_summary))
    if not hit.matches:
        yield f"{hit.ended_at:%Y-%m-%d}, summary: {summary}"
    yield f'  (from "{indented(clean(hit.title))}", episode {hit.ordinal})'
    if hit.matches:
        yield f"  summary: {summary}"
