"""Which row of a conversation's rolling summary a new text goes to. No I/O."""

from dataclasses import replace

from schemas import SummaryCreated
from streams.stores.episodes import RollingRow, scope_of
from streams.tokens import count_tokens


def next_row(latest: RollingRow | None, summary: SummaryCreated, max_tokens: int) -> RollingRow | None:
    """The row to write after `latest`; None when the summary's ordinal is covered already.

    The text is always that of the whole conversation. It replaces the latest row's while that one is under
    `max_tokens`; past that it begins a new row, and the old one stays as the text as of its last ordinal.
    """
    if latest is not None and summary.ordinal <= latest.last_ordinal:
        return None
    row = _row(summary, 1 if latest is None else latest.row + 1)
    if latest is not None and latest.token_count < max_tokens:
        return replace(row, row=latest.row, first_ordinal=latest.first_ordinal)
    return row


def _row(summary: SummaryCreated, number: int) -> RollingRow:
    return RollingRow(
        conversation_id=scope_of(summary),
        row=number,
        content=summary.rolling_summary,
        token_count=count_tokens(summary.rolling_summary),
        first_ordinal=summary.ordinal,
        last_ordinal=summary.ordinal,
        updated_at=summary.created_at,
    )
