from dataclasses import replace

from afterword.streams.stores.erasures import ErasedConversation, Erasure, Erasures
from tests.samples import NOON

ERASURE = Erasure("key", "receipt", "salt", NOON, "ann")


async def test_a_request_that_comes_again_goes_on_as_the_first(erasures: Erasures) -> None:
    assert await erasures.begin(ERASURE) == ERASURE
    assert await erasures.begin(replace(ERASURE, receipt_id="other", salt="other", asked_by=None)) == ERASURE
    other = replace(ERASURE, key="other")
    assert await erasures.begin(other) == other


async def test_counts_are_added_up(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    await erasures.count(ERASURE, {"replies": 2})
    await erasures.count(ERASURE, {"replies": 1, "dead_letters": 4})
    assert await erasures.find(ERASURE) == replace(ERASURE, counts={"replies": 3, "dead_letters": 4})


async def test_conversations_are_kept_replaced_and_read_page_by_page(erasures: Erasures) -> None:
    await erasures.begin(ERASURE)
    names = sorted(["c1", "a:b", "ü", "", "{}", ";"], key=str.encode)
    await erasures.put(ERASURE, [ErasedConversation(name, whole=False, messages=1) for name in names])
    await erasures.put(ERASURE, [ErasedConversation("c1", whole=True, messages=1, open_messages=2, episodes=3)])
    found: list[str] = []
    while page := await erasures.following(ERASURE, found[-1] if found else None, 2):
        found += [one.conversation_id for one in page]
    assert found == names
    expected = {"c1": ErasedConversation("c1", True, 1, 2, 3)}
    assert await erasures.known(ERASURE, ["c1", "c2"]) == expected


async def test_nothing_is_left_of_an_erasure_that_has_ended_and_all_of_the_others(erasures: Erasures) -> None:
    others = [replace(ERASURE, key=name, receipt_id=name) for name in ("receipt0", "r", "receipt-")]
    for one in (ERASURE, *others):
        await erasures.begin(one)
        await erasures.put(one, [ErasedConversation("c1", whole=True)])
    for _ in range(2):
        await erasures.end(ERASURE)
    assert await erasures.find(ERASURE) is None
    assert await erasures.following(ERASURE, None, 5) == []
    for one in others:
        assert await erasures.find(one) == one
        assert await erasures.known(one, ["c1"])
