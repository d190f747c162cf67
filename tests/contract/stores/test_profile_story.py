"""The profile of one person grows over six conversations: on each store, in Python, over REST, MCP and on the page."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import timedelta
from html import unescape
from typing import Any

import pytest_asyncio

from afterword.operating.copying import export_lines
from afterword.reading.memory import Memory
from afterword.reading.profile import Profile
from afterword.schemas import (
    ConversationAssigned,
    ConversationDeleted,
    EpisodeClosed,
    EpisodeRedo,
    Fact,
    MessageDeleted,
    MessageEdited,
    Quality,
    Source,
    fingerprint,
)
from afterword.serving.reading import RecallAnswer
from afterword.serving.requests import Principal
from afterword.serving.tools import ProfileArguments, RecallArguments, Toolbox
from afterword.streams.settings import Retention, Retry
from afterword.streams.stores.episodes import EpisodeQueries
from afterword.streams.stores.index import EpisodeIndex
from afterword.streams.stores.messages import ArchiveChange, MessageArchive
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.reconciler import Reconciler
from afterword.streams.summarizer.summarizer import Summarizer
from afterword.streams.summarizer.summary import Summary, SummaryRequest, SummaryRules
from afterword.streams.summarizer.timers import RetentionSweep
from tests.samples import NOON, Changed, a_cause, a_closed_episode, a_fact, an_amendment, an_episode_message
from tests.summarizer_world import TODAY, Topic, a_step_runner
from tests.unit.afterword.serving.served import Served, serving

ADA, BOB = "ada", "bob"
TODAYS_DATE = NOON + timedelta(days=60)


class Llm(ExtractiveProvider):
    """Repeats what users say about themselves, or states the facts that it is given."""

    facts: tuple[Fact, ...] | None = None

    async def summarize(self, request: SummaryRequest) -> Summary:
        made = await super().summarize(request)
        facts = made.facts if self.facts is None else self.facts
        return replace(made, quality=Quality(source="llm"), model=TODAY.model, facts=facts)


@dataclass
class Story:
    """Sends conversations to the summarizer, and runs a server on its stores."""

    served: Served
    episodes: EpisodeQueries
    messages: MessageArchive
    index: EpisodeIndex
    reconciler: Reconciler
    memory: Memory
    llm: "Llm"
    next_offset: int = 0

    async def tell(self, conversation_id: str, day: int, *said: tuple[str, str]) -> None:
        """Summarize an episode, given as speakers and texts."""
        first = self.next_offset
        messages = tuple(
            an_episode_message(
                f"{conversation_id}-{n}",
                content=text,
                role="assistant" if who == "assistant" else "user",
                user_id=ADA if who == "assistant" else who,
                offset=first + n,
            ).model_copy(update={"sent_at": NOON + timedelta(days=day, minutes=n)})
            for n, (who, text) in enumerate(said)
        )
        self.next_offset += len(said)
        ends = {"started_at": messages[0].sent_at, "ended_at": messages[-1].sent_at, "closed_at": messages[-1].sent_at}
        source = Source(topic="messages", partition=0, first_offset=first, last_offset=first + len(said) - 1)
        shape: dict[str, Any] = {"user_id": messages[0].user_id, "message_count": len(said), "source": source, **ends}
        closed: EpisodeClosed = a_closed_episode(
            1, conversation_id, messages=messages, overlap=(), fingerprint=fingerprint(messages), **shape
        )
        await self.reconciler.handle(closed, a_cause(first))

    async def change(self, event: Changed) -> None:
        offset = self.next_offset
        self.next_offset += 1
        await self.messages.change(ArchiveChange(event, 0, offset))
        await self.reconciler.handle(an_amendment(event, offset), a_cause(offset))

    async def delete(self, message_id: str) -> None:
        conversation_id = message_id.partition("-")[0]
        await self.change(MessageDeleted(id=message_id, conversation_id=conversation_id, tenant_id="t1"))

    async def known(self, user: str = ADA) -> list[str]:
        """Return what is known about a user, after checking that every interface agrees and that each fact has an
        existing message."""
        found = await self.memory.profile(user, "t1")
        await self._check_sources(found)
        answer = (await self.served.client.get(f"/v1/users/{user}/profile", params={"tenant_id": "t1"})).json()
        holder = Principal("k", {"read"}, tenant_id="t1", user_id=user)
        tool = await Toolbox(self.memory, self.served.broker, holder).get_profile(ProfileArguments())
        lines = [fact.statement for fact in found.facts]
        assert [fact["statement"] for fact in answer["facts"]] == lines
        assert answer["superseded"] == found.model_dump(mode="json")["superseded"]
        assert all(line in answer["as_text"] and line in tool.text for line in lines)
        page = (await self.served.client.get("/person", params={"user_id": user, "tenant_id": "t1"})).text
        shown = re.findall(r'href="/conversation/message[^"]*">([^<]*)</a>', page)
        assert [unescape(line) for line in shown] == lines
        ended = [unescape(line) for line in re.findall(r"<del>([^<]*)</del>", page)]
        assert ended == [fact.statement for fact in found.superseded]
        return lines

    async def _check_sources(self, found: Profile) -> None:
        for fact in (*found.facts, *found.superseded):
            for source in fact.sources:
                told = [await self.memory.message(source.conversation_id, one, 0) for one in source.message_ids]
                assert all(told), "a fact without a living message"
                stated = fact.statement.rstrip(".").rpartition(": ")[2]  # of several values, those that are left
                value = stated.split()[-1]  # of a corrected statement, only the value is in the correction
                assert any(
                    stated in one.message.content or f"{value}, not" in one.message.content for one in told if one
                )

    async def found(self, query: str, user: str = ADA, tenant_id: str = "t1") -> dict[str, list[str]]:
        """Return the episodes that a user finds with their messages, after checking that every interface agrees."""
        hits = await self.memory.recall(query, user_id=user, tenant_id=tenant_id, min_coverage=0)
        body = {"query": query, "user_id": user, "tenant_id": tenant_id, "min_coverage": 0}
        answer = (await self.served.client.post("/v1/recall", json=body)).json()
        assert answer["hits"] == [hit.model_dump(mode="json") for hit in hits]
        holder = Principal("k", {"read"}, tenant_id=tenant_id, user_id=user)
        tool = await Toolbox(self.memory, self.served.broker, holder).recall(
            RecallArguments(query=query, min_coverage=0)
        )
        assert tool.document == RecallAnswer(hits=tuple(hits))
        return {hit.episode_id: [match.content for match in hit.matches] for hit in hits}

    async def was(self, user: str = ADA) -> list[tuple[str, int]]:
        """Return the superseded facts, each with the day."""
        found = await self.memory.profile(user, "t1")
        return [(fact.statement, (fact.superseded_at - NOON).days) for fact in found.superseded if fact.superseded_at]


def a_reconciler(
    episodes: EpisodeQueries,
    messages: MessageArchive,
    index: EpisodeIndex,
    llm: Llm,
    retention: Retention | None = None,
) -> Reconciler:
    return Reconciler(
        episodes=episodes,
        messages=messages,
        index=index,
        summarizer=Summarizer(llm),
        embedder=None,
        publish=Topic().publish,
        keep=Topic().publish,
        steps=a_step_runner(),
        rules=SummaryRules(200),
        retry=Retry(),
        retention=retention,
        clock=lambda: TODAYS_DATE,
    )


@pytest_asyncio.fixture
async def story(episodes: EpisodeQueries, messages: MessageArchive, index_beside: EpisodeIndex) -> AsyncIterator[Story]:
    index = index_beside
    memory, llm = Memory(episodes, messages, index.search), Llm()
    reconciler = a_reconciler(episodes, messages, index, llm)
    async with serving(memory=memory) as served:
        yield Story(served, episodes, messages, index, reconciler, memory, llm)


async def tell_it_all(story: Story) -> None:
    await story.tell("c1", 0, (ADA, "Hi! My name is Jon and I need help."), (ADA, "I live in Leeds."))
    await story.tell("c2", 7, (ADA, "It's John, not Jon."), ("assistant", "Sorry!"), (ADA, "I am allergic to nuts."))
    await story.tell("c3", 14, (ADA, "I'm planning a trip to Rome in May."), ("assistant", "I live in a server."))
    await story.tell("c4", 21, (ADA, "I've moved from Leeds to Porto."))
    await story.tell("c5", 28, (BOB, "I live in Oslo."), (ADA, "Hello Bob, I work for a bank."))
    await story.tell("c6", 35, (ADA, "I have cancelled the trip to Rome. My phone number is 555-0101."))


async def test_profile_is_right_after_each_conversation(story: Story) -> None:
    await story.tell("c1", 0, (ADA, "Hi! My name is Jon."), (ADA, "I live in Leeds."))
    assert await story.known() == ["My name is Jon.", "I live in Leeds."]
    await story.tell("c2", 7, (ADA, "It's John, not Jon."), ("assistant", "Sorry!"), (ADA, "I am allergic to nuts."))
    assert await story.known() == ["It's John, not Jon.", "I live in Leeds.", "I am allergic to nuts."]
    assert await story.was() == [("My name is Jon.", 7)]
    await story.tell("c3", 14, (ADA, "I'm planning a trip to Rome in May."), ("assistant", "I live in a server."))
    assert (await story.known())[-1] == "I'm planning a trip to Rome in May."
    await story.tell("c4", 21, (ADA, "I've moved from Leeds to Porto."))
    assert (await story.known())[0] == "I've moved from Leeds to Porto."
    assert (await story.was())[0] == ("I live in Leeds.", 21)
    await story.tell("c5", 28, (BOB, "I live in Oslo."), (ADA, "Hello Bob, I work for a bank."))
    await story.tell("c6", 35, (ADA, "I have cancelled the trip to Rome. My phone number is 555-0101."))
    assert await story.known() == [
        "My phone number is 555-0101.",
        "I work for a bank.",
        "I've moved from Leeds to Porto.",
        "It's John, not Jon.",
        "I am allergic to nuts.",
        "I have cancelled the trip to Rome.",
    ]
    assert (await story.was())[0] == ("I'm planning a trip to Rome in May.", 35)
    assert await story.known(BOB) == ["I live in Oslo."]


async def test_edit_or_deletion_changes_the_profile(story: Story) -> None:
    await tell_it_all(story)
    await story.change(
        MessageEdited(id="c2-2", conversation_id="c2", tenant_id="t1", content="I am allergic to shellfish.")
    )
    known = await story.known()
    assert "I am allergic to shellfish." in known
    assert "I am allergic to nuts." not in known
    await story.delete("c4-0")
    assert "I live in Leeds." in await story.known()
    assert [statement for statement, _ in await story.was() if "Leeds" in statement] == []
    await story.delete("c6-0")
    assert "I'm planning a trip to Rome in May." in await story.known()
    await story.change(
        MessageEdited(id="c3-0", conversation_id="c3", tenant_id="t1", skip_summarization=True, content="Never mind.")
    )
    assert not [statement for statement in await story.known() if "Rome" in statement]


async def test_new_summary_brings_its_own_facts(story: Story) -> None:
    await tell_it_all(story)
    story.llm.facts = (a_fact("name is John", attribute="name", user_id=ADA, message_ids=("c2-0",)),)
    redo = {"revision": 1, "requested_at": NOON}
    await story.reconciler.handle(
        EpisodeRedo(conversation_id="c2", tenant_id="t1", episode_id="c2:1", attempt=0, **redo), a_cause(500)
    )
    found = await story.memory.profile(ADA, "t1")
    assert "name is John" in [fact.statement for fact in found.facts]
    assert "I am allergic to nuts." not in [fact.statement for fact in found.facts]


async def test_expired_facts_leave_the_profile(story: Story) -> None:
    await tell_it_all(story)
    retention = Retention(episodes_days=40)
    reconciler = a_reconciler(story.episodes, story.messages, story.index, story.llm, retention)

    async def handle(redo: EpisodeRedo) -> None:
        await reconciler.handle(redo, a_cause(1000))

    stores: dict[str, Any] = {"episodes": story.episodes, "messages": story.messages}
    sweep = RetentionSweep(retention, **stores, send=handle, clock=lambda: TODAYS_DATE)
    await sweep.sweep()
    assert await story.known() == [
        "My phone number is 555-0101.",
        "I work for a bank.",
        "I've moved from Leeds to Porto.",
        "I have cancelled the trip to Rome.",
    ]
    assert await story.was() == []


async def test_erasure_removes_one_persons_facts_only(story: Story) -> None:
    await tell_it_all(story)
    for name in ("c1", "c2", "c3", "c4", "c6"):
        await story.change(ConversationDeleted(conversation_id=name, tenant_id="t1"))
    await story.delete("c5-1")
    assert await story.known() == await story.was() == []
    assert await story.known(BOB) == ["I live in Oslo."]
    assert [one.user_id for one in (await story.memory.users(tenant_id="t1")).users] == [BOB]


async def test_participant_finds_shared_conversations_with_own_messages(story: Story) -> None:
    await tell_it_all(story)
    bank, oslo = "Hello Bob, I work for a bank.", "I live in Oslo."
    assert await story.found("Who works for a bank in Oslo?", BOB) == {"c5:1": [bank, oslo]}
    assert await story.found("Who works for a bank in Oslo?") == {"c5:1": [bank]}
    assert await story.found("Oslo", "carl") == await story.found("Oslo", BOB, "t2") == {}
    assert await story.memory.episode("c5:1", user_id=ADA, tenant_id="t1") is None
    await story.change(MessageEdited(id="c5-1", conversation_id="c5", tenant_id="t1", content="I work for a circus."))
    assert await story.found("circus") == {"c5:1": ["I work for a circus."]}
    assert "c5:1" not in await story.found("bank")
    await story.delete("c5-1")
    assert "c5:1" not in await story.found("Who works for a circus in Oslo?")
    assert await story.found("Who works for a circus in Oslo?", BOB) == {"c5:1": [oslo]}
    await story.change(ConversationDeleted(conversation_id="c5", tenant_id="t1"))
    assert await story.found("Oslo", BOB) == {}


async def test_guest_who_signs_in_has_what_the_guest_said(story: Story) -> None:
    guest, nora = "guest-11", "nora"
    await story.tell("c7", 1, (guest, "My daughter plays the cello."), (guest, "I'm allergic to rosin."))
    assert await story.memory.context("c7", user_id=nora, tenant_id="t1") is None
    users = {"from_user_id": guest, "user_id": nora}
    await story.change(ConversationAssigned(conversation_id="c7", tenant_id="t1", **users))
    assert await story.known(nora) == ["My daughter plays the cello.", "I'm allergic to rosin."]
    found = await story.found("daughter with a cello", nora)
    assert found["c7:1"][0] == "My daughter plays the cello."
    context = await story.memory.context("c7", user_id=nora, tenant_id="t1")
    assert context
    assert [one.user_id for one in context.messages] == [nora, nora]
    assert await story.memory.conversation_ids(user_id=nora, tenant_id="t1") == ["c7"]
    assert await story.known(guest) == []
    assert await story.found("daughter with a cello", guest) == {}
    assert not await story.memory.knows_user(guest, "t1")
    assert await story.memory.context("c7", user_id=guest, tenant_id="t1") is None


async def test_export_has_the_facts(story: Story) -> None:
    await tell_it_all(story)
    lines = [line async for line in export_lines(story.episodes, story.messages, ADA, "t1")]
    facts = [fact["statement"] for line in lines if line["type"] == "episode" for fact in line["facts"]]
    assert "I've moved from Leeds to Porto." in facts


async def test_context_begins_with_known_facts(story: Story) -> None:
    await tell_it_all(story)
    found = await story.memory.context("c3", user_id=ADA, tenant_id="t1", profile=True, max_tokens=1000)
    assert found is not None
    first, *_ = found.as_messages()
    assert "I am allergic to nuts." in first["content"]
    assert found.as_text().startswith("Known of the user:\n    My phone number is 555-0101. (2026-02-09)\n")
    without = await story.memory.context("c3", user_id=ADA, tenant_id="t1", max_tokens=1000)
    assert without is not None
    assert without.profile is None
    assert found.as_messages()[1:] == without.as_messages()
    assert await story.memory.context("c3", user_id=BOB, tenant_id="t1", profile=True) is None
    params = {"tenant_id": "t1", "profile": "true", "form": "text"}
    answer = (await story.served.client.get("/v1/conversations/c3/context", params=params)).json()
    assert answer["as_text"] == (await story.memory.context("c3", profile=True) or found).as_text()
    assert answer["profile"]["facts"]


async def test_changes_denials_frames_and_corrections_are_told_apart(story: Story) -> None:
    await story.tell("c1", 0, (ADA, "Hi! I'm Ada, I'm a nurse in Porto. I'm allergic to nuts and I have two kids."))
    assert set(await story.known()) == {"I'm Ada", "I'm a nurse in Porto.", "I have two kids.", "I'm allergic to nuts"}
    await story.tell("c2", 7, (ADA, "We have three kids now. I've moved to Faro."))  # a change
    await story.tell("c3", 14, (ADA, "Good news: the nut test was negative, I'm not allergic to nuts!"))  # a denial
    await story.tell(
        "c4", 21, (ADA, "Let's play: pretend I'm a pirate."), (ADA, "My name is Redbeard. I live in Rome.")
    )
    await story.tell("c5", 28, (ADA, "My name is Adah."), (ADA, "It's Adda, not Adah."))  # a correction
    known = await story.known()
    assert {"We have three kids now.", "I've moved to Faro.", "My name is Adda."} <= set(known)
    assert not [
        one
        for one in known
        if "two kids" in one or "allergic" in one or "Adah" in one or "Redbeard" in one or "Rome" in one
    ]
    ended = dict(await story.was())
    assert ended["I'm allergic to nuts"] == 14
    assert ended["I have two kids."] == 7


async def test_question_about_the_user_is_answered_by_fact_messages(story: Story) -> None:
    await tell_it_all(story)
    found = await story.found("What do you know about me?")
    told = [text for texts in found.values() for text in texts]
    assert "I've moved from Leeds to Porto." in told
    assert "I am allergic to nuts." in told
    assert "I live in Leeds." not in told
    assert next(iter((await story.found("what's my name?")).values())) == ["It's John, not Jon."]


async def test_forgotten_facts_are_not_shown(story: Story) -> None:
    await story.tell("c1", 0, (ADA, "I have two dogs."), ("assistant", "Noted."), (ADA, "Forget that, please."))
    assert await story.known() == []
    ((statement, _),) = await story.was()
    assert statement == "I have two dogs."
