import httpx

from afterword.schemas import decode_episode
from afterword.streams.summarizer.quality import QualityRules, SourceTexts, Texts, assess
from benchmarks.closed import MESSAGES, closed_episodes
from benchmarks.llm import TEXTS, StandIn, chat, conversation_of, name_of


def test_episodes_come_in_turns_each_complete_and_in_order() -> None:
    episodes = [decode_episode(key, value) for key, value in closed_episodes([1, 2], 2)]
    assert [episode.episode_id for episode in episodes] == ["account-1:1", "account-2:1", "account-1:2", "account-2:2"]
    assert {len(episode.messages) for episode in episodes} == {MESSAGES}


def test_what_the_stand_in_says_passes_the_quality_check() -> None:
    (_, value), *_ = closed_episodes([1], 1)
    episode = decode_episode(b"account-1", value)
    source = SourceTexts("\n".join(message.content for message in episode.messages))
    texts = Texts(TEXTS["title"], TEXTS["short_summary"], TEXTS["long_summary"], TEXTS["rolling_summary"])
    assert assess(source, texts, QualityRules()).problems == ()


def test_a_message_names_its_conversation() -> None:
    assert all(conversation_of(value) == name_of(17) for _, value in chat(name_of(17), 0, 3))
    assert conversation_of(b"{}") == ""


async def test_the_stand_in_notes_who_had_a_slot_for_how_long() -> None:
    async with StandIn(lambda _: 0.01) as llm, httpx.AsyncClient(trust_env=False) as client:
        url = llm.environment(slots=1)["AFTERWORD_LLM__BASE_URL"]
        response = await client.post(f"{url}/chat/completions", content=b"account-3")
    assert response.is_success
    (span,) = llm.spans
    assert span.conversation == "account-3"
    assert span.ended - span.began >= 0.01
