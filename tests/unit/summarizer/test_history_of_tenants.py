"""A summary is made from texts of its own tenant only, whatever the store holds under the conversation's keys."""

import pytest

from afterword.streams.stores.episodes import RollingRow
from afterword.streams.summarizer.rolling import SummaryRules, read_history
from tests.doubles.stores import MemoryEpisodes
from tests.samples import NOON, a_closed_episode, a_stored_episode

DIAGNOSIS = "The user has the flu."


@pytest.mark.parametrize("rolling", [(1,), ()], ids=["a rolling text", "a pending episode"])
@pytest.mark.parametrize(("tenant", "told"), [("t1", True), ("t2", False), (None, False)])
async def test_no_other_tenants_text_gets_into_a_summary(
    rolling: tuple[int, ...], tenant: str | None, told: bool
) -> None:
    episodes = MemoryEpisodes()
    first = a_stored_episode(1, rolling_ordinals=rolling, rolling_summary=DIAGNOSIS, long_summary=DIAGNOSIS)
    await episodes.add(first)
    await episodes.advance(first.summary)
    await episodes.put_row(RollingRow("c1", 1, DIAGNOSIS, 5, 1, 1, NOON), None)
    history = await read_history(episodes, a_closed_episode(2, tenant_id=tenant), SummaryRules(200))
    assert (DIAGNOSIS in history.text) == told
