"""Ended sessions of the page are known to every server, until nobody can have a cookie of them."""

from datetime import UTC, datetime

from afterword.streams.stores.bookkeeping import SESSION_RETENTION, EndedSessions, Records


async def test_ended_session_is_kept_until_no_cookie_is_valid(records: Records) -> None:
    sessions = EndedSessions(records)
    long_ago = (datetime.now(UTC) - 2 * SESSION_RETENTION).isoformat()
    assert await records.replace("ended_sessions", "old", None, long_ago)
    await sessions.add("s1")
    await sessions.add("s1")
    assert [await sessions.has(name) for name in ("s1", "s2", "old")] == [True, False, False]
