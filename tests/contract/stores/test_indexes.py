import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from afterword.streams.stores.index import DEPTH, EpisodeIndex, Query, SearchText
from afterword.streams.stores.packing import cosines, packed_texts
from tests.rows import with_rows
from tests.samples import NOON, a_summary
from tests.vectors import episode_of, put

# the stand-in answers with the client's local mode, which warns that it has no payload indexes
pytestmark = pytest.mark.filterwarnings("ignore:Payload indexes have no effect:UserWarning")


def a_query(text: str, **fields: Any) -> Query:
    return Query(**{"text": text, "user_id": "u1", "tenant_id": "t1", **fields})


async def found(index: EpisodeIndex, text: str, **fields: Any) -> list[str]:
    return [one.episode_id for one in await index.search(a_query(text, **fields))]


async def ids(index: EpisodeIndex) -> list[str]:
    """Return the ids of the first 1,100 indexed episodes, more than a page."""
    return sorted(await index.revisions([f"c1:{n}" for n in range(1100)]))


async def test_empty_index_has_and_finds_nothing(index: EpisodeIndex) -> None:
    assert await ids(index) == []
    assert await index.search(a_query("flight")) == []


async def test_repeated_puts_store_one_entry(index: EpisodeIndex) -> None:
    for ordinal in (1, 2, 1, 1):
        await put(index, a_summary(ordinal, revision=ordinal), "A flight to Rome, please.")
    assert await index.revisions(["c1:1", "c1:2", "c1:3"]) == {"c1:1": 1, "c1:2": 2}
    assert await index.revisions([]) == {}
    assert await ids(index) == ["c1:1", "c1:2"]


async def test_handed_over_episode_is_found_by_its_new_writer(index: EpisodeIndex) -> None:
    await put(index, a_summary(), "A flight to Rome, please.")
    handed = episode_of(a_summary(revision=2), ("u2",))
    for _ in range(2):
        assert await index.hand_over(handed)
        assert (await found(index, "flight"), await found(index, "flight", user_id="u2")) == ([], ["c1:1"])
    await put(index, a_summary(), "A train to Rome, please.")
    assert await index.hand_over(episode_of(a_summary()))
    assert (await found(index, "flight"), await found(index, "flight", user_id="u2")) == ([], ["c1:1"])
    assert await index.revisions(["c1:1"]) == {"c1:1": 2}


async def test_removed_or_unknown_episode_is_handed_to_nobody(index: EpisodeIndex) -> None:
    assert not await index.hand_over(episode_of(a_summary()))
    await put(index, a_summary(), "A flight to Rome, please.")
    await index.remove("c1:1", 1)
    assert not await index.hand_over(episode_of(a_summary(revision=2), ("u2",)))
    assert await found(index, "flight", user_id="u2") == []


async def test_many_concurrent_writers_succeed(index: EpisodeIndex) -> None:
    await asyncio.gather(*(put(index, a_summary(n % 5 + 1), "text") for n in range(20)))
    assert await ids(index) == [f"c1:{n}" for n in range(1, 6)]


async def test_text_without_words_is_indexed_too(index: EpisodeIndex) -> None:
    await put(index, a_summary(title="…", short_summary="?", long_summary="!"), "")
    assert await ids(index) == ["c1:1"]


async def test_candidate_has_what_the_ranking_compares(index: EpisodeIndex) -> None:
    summary = a_summary()
    texts = dict(zip(summary.message_ids, map(SearchText, ("A flight to Rome, please.", "", "Thanks.")), strict=True))
    vectors = {summary.message_ids[0]: [0.6, 0.8], summary.message_ids[2]: [0.0, -2.0]}
    await index.put(episode_of(summary), texts, vectors)
    (one,) = await index.search(a_query("flights"))
    assert (one.episode_id, one.conversation_id, [*one.message_ids]) == ("c1:1", "c1", [*summary.message_ids])
    assert (one.started_at, one.ended_at) == (summary.started_at, summary.ended_at)
    assert (one.words, one.vectors) == packed_texts(summary, texts, vectors)
    assert cosines(one.vectors, [2.0, 0.0]).tolist() == pytest.approx([0.6, -1.0, 0.0], abs=0.005)
    assert cosines(one.vectors, [0.0, 1.0]).tolist() == pytest.approx([0.8, -1.0, -1.0], abs=0.005)


async def test_episodes_of_a_time_are_found_in_its_order(index: EpisodeIndex) -> None:
    for ordinal in range(1, DEPTH + 9):  # each lasts two hours of its day
        at = NOON + timedelta(days=ordinal)
        times = {"started_at": at, "ended_at": at + timedelta(hours=2)}
        await put(index, a_summary(ordinal, **times), "text")
    await put(index, a_summary(1, "c2", user_id="u2"), "text")

    async def ordinals(**fields: Any) -> list[int]:
        return [int(name.rpartition(":")[2]) for name in await found(index, "nothing", **fields)]

    assert sorted(await ordinals(order="newest", k=3)) == [DEPTH + 6, DEPTH + 7, DEPTH + 8]
    assert sorted(await ordinals(order="oldest", k=2)) == [1, 2]
    day = NOON + timedelta(days=5)
    for begin, end, wanted in (
        (day + timedelta(hours=1), day + timedelta(hours=1, minutes=1), [5]),  # within the episode
        (day + timedelta(hours=2), day + timedelta(days=1, minutes=1), [5, 6]),
        (day + timedelta(hours=3), day + timedelta(days=1), []),
    ):
        query = a_query("nothing", order="newest").within(begin, end)
        found_then = await index.search(query)
        assert sorted((int(one.episode_id[3:]), one.words) for one in found_then) == [(n, b"") for n in wanted]


async def test_episode_is_found_by_its_summary_or_messages(index: EpisodeIndex) -> None:
    await put(index, a_summary(1, title="T", short_summary="An invoice.", long_summary="Unpaid."), "It is late.")
    await put(index, a_summary(2, title="T", short_summary="A flight.", long_summary="Booked."), "To Rome, please.")
    assert await found(index, "invoices") == ["c1:1"]
    assert await found(index, "Rome") == ["c1:2"]
    assert await found(index, "museum") == []
    assert await found(index, "…") == []


async def test_best_of_many_episodes_are_candidates(index: EpisodeIndex) -> None:
    texts = [*["Is it a museum?"] * DEPTH, "I take a taxi to the museum.", *["Nothing of the kind."] * 2 * DEPTH]
    for ordinal, text in enumerate(texts, start=1):
        await put(index, a_summary(ordinal, title="T", short_summary="S", long_summary="L"), text)
    candidates = await found(index, "taxi museum")
    assert len(candidates) == DEPTH
    assert f"c1:{DEPTH + 1}" in candidates


@with_rows
async def test_words_are_found_in_the_forms_people_write(index: EpisodeIndex, text: str, query: str) -> None:
    await put(index, a_summary(title="T", short_summary="S", long_summary="L"), text)
    assert await found(index, query) == ["c1:1"]


OWNERS: dict[str, dict[str, Any]] = {
    "ours": {},
    "of another user": {"user_id": "u2"},
    "of another tenant": {"tenant_id": "t2"},
    "without a tenant": {"tenant_id": None},
    "of a tenant without a name": {"tenant_id": ""},
    "of nobody": {"user_id": "", "tenant_id": None},
}


@pytest.mark.parametrize("owner", OWNERS.values(), ids=OWNERS)
async def test_search_is_limited_to_tenant_and_user(index: EpisodeIndex, owner: dict[str, Any]) -> None:
    for n, fields in enumerate(OWNERS.values()):
        await put(index, a_summary(conversation_id=f"c{n}", **fields), "A flight.")
    mine = f"c{list(OWNERS.values()).index(owner)}:1"
    assert await found(index, "flight", **owner) == [mine]


async def test_only_authors_of_an_episode_find_it(index: EpisodeIndex) -> None:
    await put(index, a_summary(1), "A flight.", [0.6, 0.8], writers=("u2", "u1", "ü/3"))
    await put(index, a_summary(2), "A flight.", [0.6, 0.8], writers=("u1",))
    await put(index, a_summary(1, conversation_id="c2", tenant_id="t2"), "A flight.", [0.6, 0.8], writers=("u2",))
    everyone = {"u1": ["c1:1", "c1:2"], "u2": ["c1:1"], "ü/3": ["c1:1"], "u4": []}
    for user, expected in everyone.items():
        assert sorted(await found(index, "flight", user_id=user)) == expected
        by_vector = await index.search(a_query("aeroplane", user_id=user), [0.6, 0.8])
        assert sorted(one.episode_id for one in by_vector) == expected
    assert await found(index, "flight", user_id="u2", conversation_id="c1", started_after=NOON) == ["c1:1"]
    assert await found(index, "flight", user_id="u2", tenant_id="t2") == ["c2:1"]
    assert await found(index, "flight", user_id="u2", tenant_id=None) == []


async def test_author_removed_by_a_revision_no_longer_finds_it(index: EpisodeIndex) -> None:
    await put(index, a_summary(1), "A flight.", writers=("u1", "u2"))
    await put(index, a_summary(1, revision=2), "A flight.", writers=("u1", "u3"))
    await put(index, a_summary(1), "A flight.", writers=("u1", "u2"))
    assert [await found(index, "flight", user_id=user) for user in ("u1", "u2", "u3")] == [["c1:1"], [], ["c1:1"]]
    await index.remove("c1:1", 3)
    assert [await found(index, "flight", user_id=user) for user in ("u1", "u3")] == [[], []]


@pytest.mark.parametrize("missing", ["user_id", "tenant_id"])
def test_search_without_tenant_and_user_is_impossible(missing: str) -> None:
    with pytest.raises(ValueError, match=missing):
        Query(**{"text": "flight", "user_id": "u1", "tenant_id": "t1", missing: 7})
    with pytest.raises(ValueError, match=missing):
        Query(**{name: "x" for name in ("text", "user_id", "tenant_id") if name != missing})


async def test_search_may_be_limited_to_an_agent_or_conversation(index: EpisodeIndex) -> None:
    await put(index, a_summary(1, agent_id="a1"), "A flight.")
    await put(index, a_summary(2), "A flight.")
    await put(index, a_summary(1, conversation_id="c2"), "A flight.")
    assert await found(index, "flight", agent_id="a1") == ["c1:1"]
    assert sorted(await found(index, "flight", conversation_id="c1")) == ["c1:1", "c1:2"]
    assert await found(index, "flight", agent_id="a1", conversation_id="c2") == []


async def test_message_vector_finds_text_sharing_no_word(index: EpisodeIndex) -> None:
    for ordinal, vectors in ((1, [[0.0, -1.0], [1.0, 0.1]]), (2, [[-0.1, 1.0], [0.0, 0.9]])):
        summary = a_summary(ordinal)
        ids = summary.message_ids[:2]
        texts = dict.fromkeys(ids, SearchText("An invoice." if ordinal == 2 else "A flight."))
        await index.put(episode_of(summary), texts, dict(zip(ids, vectors, strict=True)))
    hits = await index.search(a_query("aeroplane"), [0.9, 0.1])
    assert [one.episode_id for one in hits] == ["c1:1", "c1:2"]
    assert await index.search(a_query("aeroplane", user_id="u2"), [0.9, 0.1]) == []
    hits = await index.search(a_query("invoice"), [0.9, 0.1])
    assert [one.episode_id for one in hits] == ["c1:2", "c1:1"]


async def test_vectors_of_different_models_are_never_compared(index_of_model: Callable[[str], EpisodeIndex]) -> None:
    """While a model changes, workers with the old and the new one run side by side, until a rebuild has written all."""
    old, new = index_of_model("old"), index_of_model("new")
    await put(old, a_summary(1), "A flight.", [0.6, 0.8])
    await put(old, a_summary(2), "A flight.", [0.6, 0.8])
    await put(new, a_summary(1, revision=2), "A flight.", [0.8, -0.6])

    async def compared(index: EpisodeIndex, vector: Sequence[float]) -> set[str]:
        return {one.episode_id for one in await index.search(a_query("flight"), vector) if one.vectors}

    assert await compared(new, [0.8, -0.6]) == {"c1:1"}
    assert "c1:2" in await compared(old, [0.6, 0.8])
    assert await new.revisions(["c1:1", "c1:2"]) == {"c1:1": 2}
    await put(new, a_summary(2), "A flight.", [0.8, -0.6])
    assert await compared(new, [0.8, -0.6]) == {"c1:1", "c1:2"}


async def test_late_revision_does_not_restore_a_removed_episode(index: EpisodeIndex) -> None:
    await index.remove("c1:1", 2)  # before there is a collection
    await put(index, a_summary(1), "a needle")
    await put(index, a_summary(2), "hay")
    assert await ids(index) == ["c1:2"]
    await index.remove("c1:1", 3)
    await put(index, a_summary(1, revision=2), "a needle")
    assert await index.search(Query(text="needle", user_id="u1", tenant_id="t1")) == []
    assert await index.revisions(["c1:1", "c1:2"]) == {"c1:2": 1}


async def test_late_write_of_the_removed_revision_restores_nothing(index: EpisodeIndex) -> None:
    await put(index, a_summary(1), "a needle")
    await index.remove("c1:1", 1)
    await put(index, a_summary(1), "a needle")
    assert await index.revisions(["c1:1"]) == {}
    await put(index, a_summary(1, revision=2), "a needle")
    assert await index.revisions(["c1:1"]) == {"c1:1": 2}


async def test_pages_list_indexed_episodes_without_removed_ones(index: EpisodeIndex) -> None:
    assert [page async for page in index.pages()] == []
    for ordinal in range(1, 1004):
        await put(index, a_summary(ordinal, title="T", short_summary="S", long_summary="L"), "t")
    await index.remove("c1:7", 1)
    pages = [page async for page in index.pages()]
    assert (len(pages), len(await ids(index))) == (2, 1002)
    assert sorted(name for page in pages for name in page) == sorted({f"c1:{n}" for n in range(1, 1004)} - {"c1:7"})


async def test_forgotten_episode_can_be_put_again(index: EpisodeIndex) -> None:
    for ordinal in (1, 2):
        await put(index, a_summary(ordinal, revision=3), "A flight.")
    await index.forget(["c1:1"])
    assert await found(index, "flight") == ["c1:2"]
    await put(index, a_summary(1), "A flight.")
    assert sorted(await found(index, "flight")) == ["c1:1", "c1:2"]


async def test_search_is_bounded_by_times(index: EpisodeIndex) -> None:
    for ordinal, minute in ((1, 0), (2, 10)):
        times = {"started_at": NOON + timedelta(minutes=minute), "ended_at": NOON + timedelta(minutes=minute + 5)}
        await put(index, a_summary(ordinal, **times), "a flight to Rome")

    async def ordinals(**bounds: datetime) -> list[int]:
        found = await index.search(Query(text="flight", user_id="u1", tenant_id="t1", **bounds))
        return sorted(int(one.episode_id.rpartition(":")[2]) for one in found)

    assert await ordinals() == [1, 2]
    assert await ordinals(started_after=NOON + timedelta(minutes=10)) == [2]
    assert await ordinals(started_after=NOON + timedelta(minutes=10, milliseconds=1)) == []
    assert await ordinals(ended_before=NOON + timedelta(minutes=15)) == [1]
    assert await ordinals(started_after=NOON, ended_before=NOON + timedelta(minutes=16)) == [1, 2]
