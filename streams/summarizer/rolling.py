"""How long a conversation's next rolling summary may be, and which row it goes to. No I/O."""

from dataclasses import replace

from afterword.schemas import SummaryCreated
from afterword.streams.stores.episodes import RollingRow, scope_of
from afterword.streams.tokens import count_tokens


def longest_text(latest: RollingRow | None, max_tokens: int) -> int:
    """Tokens that the text after `latest` may have.

    While that row goes on, a quarter more than `max_tokens`: only a text that can pass it ever ends a row. A text that
    begins a new row is condensed to three quarters, so that the row has room to grow.
    """
    return max_tokens * 5 // 4 if latest is None or _goes_on(latest, max_tokens) else max_tokens * 3 // 4


def next_row(latest: RollingRow | None, summary: SummaryCreated, max_tokens: int) -> RollingRow | None:
    """The row to write after `latest`; None when the summary's ordinal is covered already, unless it is revised.

    None, too, when the text was carried over as it was: the row's range says what it really tells of.

    The text is always that of the whole conversation. It replaces the latest row's while that one is under
    `max_tokens`; past that it begins a new row, and the old one stays as the text as of its last ordinal.
    """
    if summary.rolling_range is None:
        return None
    if latest is not None and summary.ordinal <= latest.last_ordinal:
        return _revised(latest, summary)
    row = _row(summary, summary.rolling_range, 1 if latest is None else latest.row + 1)
    if latest is not None and _goes_on(latest, max_tokens):
        return replace(row, row=latest.row, first_ordinal=latest.first_ordinal)
    return row


def _revised(latest: RollingRow, summary: SummaryCreated) -> RollingRow | None:
    """With the text of a higher revision of its last episode; what went into later texts already stays in them."""
    if summary.ordinal < latest.last_ordinal or summary.revision <= latest.last_revision:
        return None
    ordinals = latest.first_ordinal, latest.last_ordinal
    return _row(summary, ordinals, latest.row)


def _goes_on(latest: RollingRow, max_tokens: int) -> bool:
    return latest.token_count < max_tokens


def _row(summary: SummaryCreated, ordinals: tuple[int, int], number: int) -> RollingRow:
    return RollingRow(
        conversation_id=scope_of(summary),
        row=number,
        content=summary.rolling_summary,
        token_count=count_tokens(summary.rolling_summary),
        first_ordinal=ordinals[0],
        last_ordinal=ordinals[1],
        updated_at=summary.created_at,
        last_revision=summary.revision,
    )
