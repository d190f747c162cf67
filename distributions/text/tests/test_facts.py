"""Which facts stated by an LLM are kept."""

import json
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from afterword.reading.profile import profile
from afterword.schemas import EpisodeMessage, Fact
from afterword.streams.stores.episodes import FactOfUser
from afterword_text.answer import MOST_FACTS, StatedFact, read_facts
from afterword_text.facts import grounded
from afterword_text.statements import first_person
from tests.rows import with_rows
from tests.samples import NOON, an_episode_message


def stated(statement: str, *numbers: int, about: str = "user", attribute: str | None = None) -> StatedFact:
    return StatedFact(statement, "identity", attribute, about, numbers)


def message(number: int, content: str, **fields: object) -> EpisodeMessage:
    return an_episode_message(f"m{number}", number, content=content, **fields)


TALK = (
    message(1, "Hi, I am allergic to nuts and I have lived in Porto since 2019."),
    message(2, "Noted: you live in Porto, and your customer number is 4711.", role="assistant"),
    message(3, "Right. Do you like tea?"),
    message(4, "I do not drink, Anna does. She lives in Rome.", role="assistant"),
    message(5, "My sister Anna will call you on 3 May."),
)


def kept(*facts: StatedFact, messages: tuple[EpisodeMessage, ...] = TALK) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(fact.statement, fact.said_by, fact.message_ids) for fact in grounded(facts, messages)]


def test_users_fact_is_kept_with_its_message() -> None:
    assert kept(stated("allergic to nuts", 1)) == [("allergic to nuts", "user", ("m1",))]


@with_rows
def test_fact_unsupported_by_its_messages_is_dropped(statement: str, number: int) -> None:
    assert kept(stated(statement, number)) == []


@pytest.mark.parametrize("numbers", [(), (0,), (6,), (-1,), (10**9,)])
def test_fact_citing_no_message_is_dropped(numbers: tuple[int, ...]) -> None:
    assert kept(stated("allergic to nuts", *numbers)) == []


def test_assistants_fact_is_marked() -> None:
    assert kept(stated("customer number 4711", 2)) == [("customer number 4711", "assistant", ("m2",))]


def test_fact_shared_with_the_user_is_the_users() -> None:
    assert kept(stated("lives in Porto", 1, 2)) == [("lives in Porto", "user", ("m1",))]


def test_users_question_is_no_statement() -> None:
    assert kept(stated("likes tea", 3, 4)) == [("likes tea", "assistant", ("m3", "m4"))]


def test_fact_belongs_to_its_speaker() -> None:
    talk = (message(1, "Do you live in Porto?", user_id="ann"), message(2, "No, I live in Leeds.", user_id="bob"))
    (fact,) = grounded([stated("lives in Leeds", 1, 2)], talk)
    assert (fact.user_id, fact.said_by, fact.message_ids) == ("bob", "user", ("m2",))


def about(name: str, **fields: object) -> list[str | None]:
    talk = (message(1, "My sister Anna lives in Rome, and I in Leeds.", **fields),)
    return [fact.about for fact in grounded([stated("lives in Leeds", 1, about=name)], talk)]


def test_fact_names_whom_it_is_about() -> None:
    assert about("user") == about("the user") == about("") == about("u1") == about("Bob", author="Bob") == [None]
    assert about("Anna") == ["Anna"]
    assert about("assistant") == about("Carla") == [], "of machines and of people whom nobody named nothing is kept"


def test_facts_follow_message_order_without_repeats() -> None:
    again = stated("Allergic to nuts", 1)
    found = kept(stated("Anna calls on 3 May", 5), stated("allergic to nuts", 1), again)
    assert [statement for statement, *_ in found] == ["allergic to nuts", "Anna calls on 3 May"]


GIVEN = {"statement": "lives in Porto", "about": "user", "kind": "identity", "attribute": "Home City", "messages": [1]}


def test_attribute_becomes_a_slug() -> None:
    assert read_facts([GIVEN]) == (StatedFact("lives in Porto", "identity", "home_city", "user", (1,)),)


@pytest.mark.parametrize("found", [None, "none", {}, 7, {"statement": "x"}])
def test_non_list_of_facts_is_empty(found: object) -> None:
    assert read_facts(found) is None


@pytest.mark.parametrize(
    "wrong",
    [
        *({"statement": value} for value in (None, 7, "", "…", "x" * 201, ["x"])),
        *({"kind": value} for value in (None, "wish", ["plan"])),
        *({"messages": value} for value in (None, 1, "1")),
        {"about": "x" * 61},
    ],
)
def test_unusable_fact_spoils_no_other(wrong: dict[str, object]) -> None:
    found = read_facts([GIVEN | wrong, "x", 7, None, GIVEN])
    assert found is not None
    assert [fact.statement for fact in found] == ["lives in Porto"]


@pytest.mark.parametrize("value", [None, "", "null", "None", 7, "?"])
def test_fact_without_an_attribute_has_none(value: object) -> None:
    (fact,) = read_facts([GIVEN | {"attribute": value}]) or ()
    assert fact.attribute is None


def test_invalid_message_numbers_are_omitted() -> None:
    (fact,) = read_facts([GIVEN | {"messages": [2, "1", True, 1.5, None, 3]}]) or ()
    assert fact.numbers == (2, 3)


def test_facts_read_are_limited() -> None:
    assert len(read_facts([GIVEN] * 100) or ()) == MOST_FACTS


def test_fact_has_at_least_one_message() -> None:
    with pytest.raises(ValueError, match="message_ids"):
        Fact(statement="x", kind="plan", user_id="u1", said_by="user", message_ids=())


@with_rows
def test_quoted_denied_framed_or_foreign_fact_is_dropped(content: str, statement: str) -> None:
    assert kept(stated(statement, 1), messages=(message(1, content),)) == []


@with_rows
def test_paraphrased_fact_is_kept(content: str, statement: str) -> None:
    assert kept(stated(statement, 1), messages=(message(1, content),))


def test_ending_fact_ends_another() -> None:
    (fact,) = grounded((stated("no longer works for Sonae", 1),), (message(1, "I no longer work for Sonae."),))
    assert fact.status == "ended"


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
