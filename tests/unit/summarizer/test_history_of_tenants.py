"""A summary is made from texts of its own tenant only, whatever the store holds under the conversation's keys."""

import pytest

from afterword.streams.summarizer.conversations import Scope, counted_in, read_history
from afterword.streams.summarizer.rolling import History, SummaryRules
from tests.doubles.stores import MemoryEpisodes
from tests.samples import a_cause, a_stored_episode

DIAGNOSIS = "The user has the flu."
RULES = SummaryRules(200)


@pytest.mark.parametrize("is_pending", [False, True], ids=["a rolling text", "a pending episode"])
@pytest.mark.parametrize(("tenant", "told"), [("t1", True), ("t2", False), (None, False)])
async def test_no_other_tenants_text_gets_into_a_summary(is_pending: bool, tenant: str | None, told: bool) -> None:
    episodes, owner = MemoryEpisodes(), Scope("c1", None, "t1")
    first = a_stored_episode(1, long_summary=DIAGNOSIS)
    await episodes.put(first, None)
    await episodes.put_conversation(counted_in(None, owner, first.summary, a_cause()), None)
    if not is_pending:
        row, _ = History(RULES, None, (), None).next_row("c1", first.summary, DIAGNOSIS, a_cause())
        await episodes.put_row(row, None)
    history = await read_history(episodes, Scope("c1", None, tenant), 2, RULES)
    assert (DIAGNOSIS in history.text) == told
