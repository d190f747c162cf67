"""The chat answers with and without memory, also without an LLM, and exists on this machine only."""

import re
from datetime import datetime, timedelta
from typing import Any

import pytest

from afterword.schemas import MessageCreated
from afterword.serving.page import answers
from afterword.streams.stores.messages import ArchivedMessage
from tests.samples import NOON, a_fact, a_stored_episode
from tests.unit.afterword.serving.served import Served, serving
from tests.unit.afterword.serving.test_page import OURS, OneKey, polled

YOU: dict[str, Any] = {"user_id": "you", "tenant_id": None}


async def remember(served: Served, text: str, conversation_id: str, day: int = 0, **fact: Any) -> None:
    """Let the user say something in an episode of its own, from which a fact is known."""
    at = NOON + timedelta(days=day)
    [said] = await served.remembered.say(text, conversation_id=conversation_id, role="user", sent_at=at, **YOU)
    facts = (a_fact(text, user_id="you", message_ids=(said.id,), **fact),) if fact else ()
    given = {"participants": ("you",), "facts": facts, "message_ids": (said.id,), "ended_at": at, "started_at": at}
    await served.remembered.episodes.put(
        a_stored_episode(day + 1, conversation_id=conversation_id, **YOU, **given), None
    )


async def asked(served: Served, conversation_id: str, question: str, name: str = "you") -> tuple[str, str]:
    """Ask without scripts, and return the answers with and without memory."""
    form = {"content": question, "name": name}
    await served.client.post("/chat", params={"id": conversation_id}, data=form, headers=OURS)
    said = [MessageCreated.model_validate_json(record.value) for record in served.broker.records[-2:]]
    assert [(one.role, one.user_id) for one in said] == [("user", name), ("assistant", name)]
    archived = [ArchivedMessage(one, 0, 1000 + len(served.broker.records) + n) for n, one in enumerate(said)]
    await served.remembered.messages.put_many(archived)
    return said[1].content, said[1].metadata.get("without_memory", said[1].content)


async def test_memory_alone_knows_the_name_in_another_conversation(served: Served) -> None:
    assert await asked(served, "chat-1", "what is my name") == (answers.NOTHING, answers.NOTHING)
    await remember(served, "My name is Ines.", "chat-1", kind="identity", attribute="name")
    assert await asked(served, "chat-2", "what is my name") == (
        "You told me on 5 January: My name is Ines.",
        answers.NOTHING,
    )
    page = (await served.client.get("/chat", params={"id": "chat-2"})).text
    assert re.findall(r'<p class="speaker">(With\w* memory)</p>', page) == ["With memory", "Without memory"]


async def test_answer_about_changes_quotes_the_earlier_statement_too(served: Served) -> None:
    assert (await asked(served, "chat-1", "What changed?"))[0] == answers.NOTHING_CHANGED
    await remember(served, "I live in Leeds.", "chat-1", kind="identity", attribute="home_city")
    await remember(served, "I moved to Porto.", "chat-1", 3, kind="identity", attribute="home_city")
    told = "You told me on 8 January: I moved to Porto. Before that, on 5 January: I live in Leeds."
    for question in ("What has changed?", "Has anything changed?", "Is er iets veranderd?"):
        assert (await asked(served, "chat-2", question))[0] == told


async def test_change_in_this_conversation_counts_before_its_episode(served: Served) -> None:
    for text in ("My name is Ines. I live in Leeds.", "I moved to Porto last week"):
        await asked(served, "chat-1", text)
    assert await asked(served, "chat-1", "Where do I live?") == ("You told me today: I moved to Porto last week",) * 2
    told = "You told me today: I moved to Porto last week. Before that, today: I live in Leeds."
    assert await asked(served, "chat-1", "What changed?") == (told,) * 2
    assert await asked(served, "chat-1", "who said that") == (told.replace("told me", "did,"),) * 2
    for question in ("What is my name?", "Where do I live?", "What do you know about me?"):
        assert await asked(served, "chat-1", question, "ben") == (answers.NOTHING,) * 2
    await remember(served, "I work as a nurse.", "chat-0", kind="identity", attribute="job")
    await asked(served, "chat-1", "I got a new job, I work as a pilot now.")
    told, without = await asked(served, "chat-1", "What changed?")
    assert "Before that, on 5 January: I work as a nurse." in told
    assert "nurse" not in without


async def test_statement_before_a_question_in_a_message_counts(served: Served) -> None:
    text = "My sister Ada visits on Sunday. What could we cook?"
    await asked(served, "chat-1", text)
    assert await asked(served, "chat-1", "Who visits on Sunday?") == (f"You told me today: {text}",) * 2


async def test_chat_leaves_out_what_it_was_told_to_forget(served: Served) -> None:
    for text in ("I collect stamps.", "I hate mushrooms.", "Forget that, please."):
        await asked(served, "chat-1", text)
    told, _ = await asked(served, "chat-1", "What do you know about me?")
    assert "stamps" in told
    assert "mushrooms" not in told


async def test_who_said_that_names_the_person_quoted_last(served: Served) -> None:
    await asked(served, "chat-1", "I booked the cabin for March.", "ada")
    told = await asked(served, "chat-1", "Who booked the cabin?", "ben")
    assert told == ("ada said today: I booked the cabin for March.",) * 2
    for question in ("Who said that?", "Who said that the cabin is booked?", "who told you?"):
        with_memory, _ = await asked(served, "chat-1", question, "ben")
        assert re.fullmatch(
            r"ada did, today at \d\d:\d\d, in this conversation: I booked the cabin for March\.", with_memory
        )


async def test_statement_is_noted_and_answers_are_not_remembered(served: Served) -> None:
    assert (await asked(served, "chat-1", "I am allergic to nuts."))[0] == answers.NOTED
    [_, answer] = [MessageCreated.model_validate_json(record.value) for record in served.broker.records]
    assert answer.skip_summarization


def test_chat_names_days_relative_to_now() -> None:
    now = datetime(2026, 3, 3, 9, tzinfo=NOON.tzinfo)
    days = (now, now - timedelta(days=1), now - timedelta(days=100))
    assert [answers.day_of(day, now) for day in days] == ["today", "on 2 March", "on 23 November 2025"]


async def sides(served: Served, conversation_id: str) -> dict[str, str]:
    page = (await served.client.get("/chat/prompts", params={"id": conversation_id})).text
    parts = re.findall(r'(?s)<section class="panel" aria-label="([^"]+)">(.*?)</section>', page)
    return {label: " ".join(re.sub(r"<[^>]+>", " ", text).split()) for label, text in parts}


async def test_prompt_with_memory_contains_the_one_without(served: Served) -> None:
    await remember(served, "I live in Porto.", "chat-1", kind="identity")
    long = [f"Message {n} of a long talk. " * 20 for n in range(100)]
    await served.remembered.summarise(await served.remembered.say(*long, conversation_id="chat-2", user_id="you"))
    await served.remembered.say("Hello again.", conversation_id="chat-2", role="user", user_id="you")
    prompts = await sides(served, "chat-2")
    assert "I live in Porto." in prompts["With memory"]
    assert "Porto" not in prompts["Without memory"]
    numbers = {label: set(re.findall(r"Message (\d+)", text)) for label, text in prompts.items()}
    assert 5 < len(numbers["Without memory"]) < 100
    assert numbers["Without memory"] < numbers["With memory"]
    assert [text.endswith("user Hello again.") for text in prompts.values()] == [True, True]


async def test_message_appears_before_its_answer_is_requested(served: Served) -> None:
    form, scripts = {"content": " Hi <b>. ", "name": "ada"}, OURS | {"hx-request": "true"}
    part = (await served.client.post("/chat?id=chat-1", data=form, headers=scripts)).text
    assert "Hi &lt;b&gt;." in part
    [record] = served.broker.records
    [path] = re.findall(r'hx-post="([^"]+)"', part)
    answer = await served.client.post(path.replace("&amp;", "&"), data={"content": "Hi <b>."}, headers=scripts)
    assert answers.NOTED in answer.text
    assert MessageCreated.model_validate_json(record.value).author == "ada"
    assert len(served.broker.records) == 2
    assert (await served.client.post("/chat?id=chat-1", data=form | {"content": " "}, headers=OURS)).status_code == 422


async def test_new_conversation_closes_this_one_and_keeps_the_name(served: Served) -> None:
    first = (await served.client.get("/chat?name=ada")).headers["location"]
    form = {"name": "ada", "content": "", "another": "yes"}
    then = await served.client.post(first, data=form, headers=OURS)
    assert re.fullmatch(r"/chat\?id=chat-\w+&name=ada", then.headers["location"])
    assert then.headers["location"] != first
    scripted = await served.client.post(first, data=form, headers=OURS | {"hx-request": "true"})
    assert re.fullmatch(r"/chat\?id=chat-\w+&name=ada", scripted.headers["hx-redirect"])
    assert served.broker.records[0].conversation_id in first


async def test_chat_is_resent_only_after_a_change(served: Served) -> None:
    path = await polled(served, "/chat?id=chat-1")
    assert (await served.client.get(path)).status_code == 204
    await served.remembered.say("Hello.", conversation_id="chat-1", **YOU)
    changed = await served.client.get(path)
    assert (changed.status_code, "Hello." in changed.text) == (200, True)


@pytest.mark.parametrize("path", ["/chat?id=c1", "/chat/prompts?id=c1", "/chat/answer?id=c1"])
async def test_server_with_authentication_has_no_chat(path: str) -> None:
    async with serving(OneKey("afw_1"), auth="keys") as served:
        await served.client.post("/sign-in", data={"key": "afw_1"}, headers=OURS)
        method = "POST" if "answer" in path else "GET"
        answer = await served.client.request(method, path, headers=OURS)
        assert answer.status_code == 404
