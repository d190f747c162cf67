"""Small records of every store: API keys, ended sessions, budgets, and erasures."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from afterword.serving.requests import key_digest, new_key
from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.bookkeeping import (
    SESSION_RETENTION,
    ApiKeys,
    Budgets,
    EndedSessions,
    ErasedConversation,
    Erasure,
    Erasures,
    RecordKind,
    Records,
    budget_key,
)
from tests.samples import NOON


async def test_api_key_is_found_by_its_digest_only(keys: ApiKeys) -> None:
    key, record = new_key(("read", "write"), "t1", None)
    _, other = new_key(("admin",), None, "u1")
    await keys.put(record)
    await keys.put(other)
    assert await keys.find(key_digest(key)) == record
    assert await keys.find(key) is None
    assert {found.key_id for found in await keys.list()} == {record.key_id, other.key_id}


async def test_removed_api_key_is_gone(keys: ApiKeys) -> None:
    key, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    assert await keys.remove(record.key_id)
    assert not await keys.remove(record.key_id)
    assert await keys.find(key_digest(key)) is None


async def test_operator_neither_finds_nor_removes_an_api_key(keys: ApiKeys) -> None:
    _, record = new_key(("read",), "t1", "u1")
    await keys.put(record)
    for call in (keys.find, keys.remove):
        with suppress(TypeError):  # SQLite refuses it
            assert not await call({"$ne": None})  # type: ignore[arg-type]  # as in a request's JSON
    assert await keys.list() == [record]


async def test_ended_session_is_kept_until_no_cookie_is_valid(records: Records) -> None:
    sessions = EndedSessions(records)
    long_ago = (datetime.now(UTC) - 2 * SESSION_RETENTION).isoformat()
    assert await records.replace("ended_sessions", "old", None, long_ago)
    await sessions.add("s1")
    await sessions.add("s1")
    assert [await sessions.has(name) for name in ("s1", "s2", "old")] == [True, False, False]


NOW = datetime(2026, 3, 1, 12, 59, tzinfo=UTC)
KEY = budget_key(NOW)


async def has_exactly(budgets: Budgets, key: str, tokens: int) -> bool:
    return not await budgets.take(key, 0, tokens) and await budgets.take(key, 0, tokens + 1)


async def test_budget_adds_up_until_its_limit(budgets: Budgets) -> None:
    assert [await budgets.take(KEY, 40, 100) for _ in range(4)] == [True, True, True, False]
    assert await has_exactly(budgets, KEY, 120)


async def test_correction_is_added_and_may_free_budget(budgets: Budgets) -> None:
    await budgets.take(KEY, 100, 100)
    await budgets.correct(KEY, -30)
    assert await has_exactly(budgets, KEY, 70)
    assert await budgets.take(KEY, 10, 100)
    await budgets.correct(KEY, 5)
    assert await has_exactly(budgets, KEY, 85)


async def test_counters_are_separate(budgets: Budgets) -> None:
    await budgets.take(f"{KEY}/one", 100, 100)
    assert await budgets.take(f"{KEY}/two", 1, 100)
    await budgets.correct(f"{KEY}/three", 5)
    assert await budgets.take(f"{KEY}/three", 1, 5)


async def test_concurrent_takers_exceed_the_limit_by_one_amount(budgets: Budgets) -> None:
    taken = await asyncio.gather(*(budgets.take(KEY, 30, 100) for _ in range(20)))
    assert sum(taken) == 4
    assert await has_exactly(budgets, KEY, 120)


async def test_takers_of_one_process_do_not_compete(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets, replace, tried = Budgets(records), records.replace, list[str]()

    async def counted(kind: RecordKind, key: str, before: str | None, after: str | None) -> bool:
        tried.append(key)
        return await replace(kind, key, before, after)

    monkeypatch.setattr(records, "replace", counted)
    await asyncio.gather(*(budgets.take(KEY, 1, 1000) for _ in range(50)))
    await asyncio.gather(*(budgets.correct(KEY, 1) for _ in range(50)))
    assert await records.read_all("budgets") == {KEY: "100"}
    assert len(tried) <= 4


async def test_counters_before_the_last_hour_are_removed(records: Records) -> None:
    for hours in range(4):
        assert await Budgets(records).take(budget_key(NOW + timedelta(hours=hours), "t", of_tenant=True), 1, 2)
    assert sorted(await records.read_all("budgets")) == ["2026-03-01T14/t", "2026-03-01T15/t"]


def test_every_hour_and_every_tenant_has_a_counter() -> None:
    keys = {
        budget_key(NOW),
        budget_key(NOW + timedelta(minutes=1)),
        budget_key(NOW, "a", of_tenant=True),
        budget_key(NOW, "a/b", of_tenant=True),
        budget_key(NOW, None, of_tenant=True),
    }
    assert keys == {"2026-03-01T12", "2026-03-01T13", "2026-03-01T12/a", "2026-03-01T12/a%2Fb", "2026-03-01T12/"}


ERASURE = Erasure("e1", "ann", "acme", NOON, "the officer")
FOUND = ErasedConversation("c.1", alone=True, messages=3, episodes=1)


async def test_repeated_erasure_request_continues_the_first(erasures: Erasures) -> None:
    assert await erasures.begin(ERASURE) == ERASURE
    assert await erasures.begin(replace(ERASURE, erasure_id="e2", asked_by=None)) == ERASURE
    for other in (replace(ERASURE, erasure_id="e3", tenant_id=None), replace(ERASURE, erasure_id="e4", user_id="bob")):
        assert await erasures.begin(other) == other
    assert {one.erasure_id for one in await erasures.under_way()} == {"e1", "e3", "e4"}


async def test_conversations_and_pending_work_survive_a_restart(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    await erasures.add(ERASURE, [FOUND])
    await erasures.report(replace(ERASURE, stage="records", left=3))
    await erasures.add(ERASURE, [replace(FOUND, messages=1), replace(FOUND, conversation_id="$c")])
    found = await erasures.begin(replace(ERASURE, erasure_id="e2"))
    assert found == await erasures.find("e1")
    assert (found.stage, found.left) == ("records", 3)
    added = [FOUND, replace(FOUND, messages=1), replace(FOUND, conversation_id="$c")]
    assert sorted(await erasures.conversations(found), key=added.index) == added
    assert await erasures.conversations(replace(ERASURE, erasure_id="e")) == []
    await erasures.report(replace(ERASURE, problem="not_erased", detail="3 records"))
    [found] = await erasures.under_way()
    assert (found.stage, found.problem, found.detail) == (None, "not_erased", "3 records")


async def test_finished_erasure_leaves_only_its_receipt(erasures: Erasures) -> None:
    other = replace(ERASURE, erasure_id="e2", user_id="bob")
    for one in (ERASURE, other):
        await erasures.begin(one)
        await erasures.add(one, [FOUND])
    for receipt in ("first", "again"):
        await erasures.end(ERASURE, receipt)
    assert await erasures.find("e1") == Erasure("e1", None, "acme", NOON, receipt="first")
    assert [one.erasure_id for one in await erasures.under_way()] == ["e2"]
    assert (await erasures.conversations(ERASURE), await erasures.conversations(other)) == ([], [FOUND])
    assert await erasures.find("e9") is None


async def test_late_writer_leaves_a_newer_request_unchanged(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    await erasures.end(ERASURE, "first")
    new = replace(ERASURE, erasure_id="e2")
    assert await erasures.begin(new) == new
    await erasures.add(ERASURE, [FOUND])
    await erasures.report(replace(ERASURE, stage="records"))
    await erasures.end(ERASURE, "again")
    assert await erasures.find("e2") == new
    assert (await erasures.conversations(ERASURE), await erasures.conversations(new)) == ([], [])


async def test_erasure_interrupted_while_ending_is_carried_out_again(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    await erasures.end(ERASURE, "first")
    await erasures.begin(ERASURE)  # as if the request had not been removed
    assert await erasures.find("e1") == ERASURE
    await erasures.end(ERASURE, "again")
    assert (await erasures.under_way(), await erasures.find("e1")) == ([], ERASURE.done("first"))


async def test_interrupted_end_keeps_the_request_for_a_repeat(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    await erasures.add(ERASURE, [FOUND])
    records = erasures._records

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            return getattr(records, name)

        async def replace(self, kind: RecordKind, key: str, before: str | None, after: str | None) -> bool:
            if kind == "erased_conversations":
                raise StoreUnavailable(store="records", problem="it was stopped")
            return await records.replace(kind, key, before, after)

    with pytest.raises(StoreUnavailable):
        await Erasures(Interrupted()).end(ERASURE, "{}")  # type: ignore[arg-type]
    assert await erasures.under_way() == [ERASURE]
    await erasures.end(ERASURE, "{}")
    assert (await erasures.under_way(), await erasures.conversations(ERASURE)) == ([], [])
