"""What is said inside frames is no fact, and what was so is ended by a change told in other words."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from afterword.reading.profile import profile
from afterword.schemas import EpisodeMessage
from afterword.streams.stores.episodes import FactOfUser
from afterword_text.statements import first_person
from tests.samples import NOON, an_episode_message


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()]


def said(*texts: str) -> list[EpisodeMessage]:
    return [an_episode_message(f"m{n}", content=text, role="user", user_id="ann") for n, text in enumerate(texts)]


def current(*conversations: Sequence[str]) -> list[str]:
    """Return what the profile holds after conversations of these messages, a day apart."""
    facts = [
        FactOfUser(
            *(fact.statement, fact.kind, fact.attribute, fact.status, fact.about, fact.said_by, f"e{day}", f"c{day}"),
            *(0, fact.message_ids, NOON + timedelta(days=day)),
        )
        for day, texts in enumerate(conversations)
        for fact in first_person(said(*texts))
    ]
    return [fact.statement for fact in profile("ann", None, facts).facts]


@pytest.mark.parametrize("row", rows_of("frames.jsonl"), ids=lambda row: str(row["said"][-1])[:40])
def test_facts_count_only_outside_frames(row: dict[str, Any]) -> None:
    known = [fact.statement for fact in first_person(said(*row["said"])) if fact.status != "ended"]
    assert any(row["known"] in one for one in known) if "known" in row else known == []


@pytest.mark.parametrize("row", rows_of("changes.jsonl"), ids=lambda row: str(row["after"])[:40])
def test_paraphrased_change_ends_only_the_replaced_fact(row: dict[str, Any]) -> None:
    assert (row.get("gone") or row["stays"]) in " ".join(current([row["before"]]))
    texts = row["before"], row["after"]
    now = " ".join(current(texts) if row.get("at_once") else current(*([text] for text in texts)))
    assert row.get("known", "") in now
    assert row["gone"] not in now if "gone" in row else row["stays"] in now
