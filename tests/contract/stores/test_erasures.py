"""Erasures are kept until they end; after that, nothing names the person."""

from dataclasses import replace

import pytest

from afterword.streams.errors import StoreUnavailable
from afterword.streams.stores.bookkeeping import ErasedConversation, Erasure, Erasures, RecordKind
from tests.samples import NOON

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
