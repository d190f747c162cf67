"""Conversations as the workers leave them in the stores, and stores that count what is loaded from them."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any

from afterword.reading.context import Context
from afterword.reading.memory import Memory
from afterword.schemas import EpisodeMessage, MessageCreated
from afterword.schemas.base import episode_id, scope_id
from afterword.streams.stores.index import searchable
from afterword.streams.stores.messages import ArchivedMessage, DeletedMessage, MessageText, Selection
from afterword.streams.summarizer.conversations import Conversations, Scope, counted_in
from afterword.streams.summarizer.providers import ExtractiveProvider
from afterword.streams.summarizer.reconciler import archived
from afterword.streams.summarizer.summary import SummaryRequest, SummaryRules
from afterword_text.tokens import count_tokens
from tests.doubles.index import MemoryIndex
from tests.doubles.stores import MemoryEpisodes, MemoryMessages
from tests.samples import NOON, a_closed_episode, a_message, a_stored_episode_of

ROLLING_TOKENS = 800


class CountingMessages(MemoryMessages):
    """An archive that counts the messages it returns."""

    loaded = 0

    async def newest(self, selection: Selection) -> AsyncGenerator[ArchivedMessage, None]:
        async with aclosing(super().newest(selection)) as found:
            async for archived in found:
                self.loaded += 1
                yield archived

    async def states(
        self, keys: Sequence[str], *, with_metadata: bool = True
    ) -> dict[str, ArchivedMessage | DeletedMessage]:
        found = await super().states(keys, with_metadata=with_metadata)
        self.loaded += len(found)
        return found

    async def texts(self, keys: Sequence[str], characters: int) -> dict[str, MessageText]:
        found = await super().texts(keys, characters)
        self.loaded += len(found)
        return found


class Remembered:
    """A deployment's stores in memory."""

    def __init__(self) -> None:
        self.episodes = MemoryEpisodes()
        self.messages = CountingMessages()
        self.index = MemoryIndex()
        self.memory = Memory(self.episodes, self.messages, self.index.search)
        self._offset = 0
        self._ordinals: dict[str, int] = {}

    async def say(self, *texts: str, conversation_id: str = "c1", **fields: Any) -> list[MessageCreated]:
        """Archive messages `m0`, `m1` …, a minute apart, with user and assistant taking turns."""
        said = []
        for text in texts:
            n = self._offset
            given = {
                "role": "assistant" if n % 2 else "user",
                "sent_at": NOON + timedelta(minutes=n),
                "tenant_id": "t1",
            }
            said.append(a_message(f"m{n}", conversation_id, **{"content": text, **given, **fields}))
            self._offset += 1
        start = self._offset - len(said)
        await self.messages.put_many([ArchivedMessage(m, 0, start + n) for n, m in enumerate(said)])
        return said

    async def summarise(
        self, messages: Sequence[MessageCreated], size: int = 20, rolling: bool = True, agent_id: str | None = None
    ) -> None:
        """Make episodes of so many messages, as the summarizer does without an LLM."""
        for start in range(0, len(messages), size):
            await self._episode(messages[start : start + size], rolling, agent_id)

    async def context(self, **wanted: Any) -> Context:
        found = await self.memory.context("c1", **wanted)
        assert found is not None
        return found

    async def _episode(self, messages: Sequence[MessageCreated], rolling: bool, agent_id: str | None) -> None:
        conversation = messages[0].conversation_id
        scope = scope_id(conversation, agent_id)
        ordinal = self._ordinals[scope] = self._ordinals.get(scope, 0) + 1
        core = tuple(EpisodeMessage(**m.model_dump(include=set(EpisodeMessage.model_fields))) for m in messages)
        tokens = sum(count_tokens(m.content) for m in core)
        given = {
            "message_count": len(core),
            "token_count": tokens,
            "agent_id": agent_id,
            "user_id": messages[0].user_id,
            "started_at": core[0].sent_at,
            "ended_at": core[-1].sent_at,
        }
        ids = {"episode_id": episode_id(conversation, ordinal, agent_id)}
        closed = a_closed_episode(ordinal, conversation, messages=core, overlap=(), **given, **ids)
        whose = Scope.of(closed)
        history = await Conversations(self.episodes, SummaryRules(ROLLING_TOKENS)).history(whose, ordinal)
        request = SummaryRequest(closed, history.text, history.rules.row_tokens)
        texts = await ExtractiveProvider().summarize(request)
        stored = a_stored_episode_of(closed, texts)
        summary = stored.summary
        assert await self.episodes.put(stored, None)
        if rolling:
            row = history.next_row(scope, summary, texts.rolling_summary, stored.cause)
            assert await self.episodes.put_row(row, history.continued)
        known = history.conversation
        assert await self.episodes.put_conversation(counted_in(known, whose, summary, stored.cause), known)
        await self.messages.assign(summary.episode_id, [archived(message, closed) for message in core])
        await self.index.put(stored, searchable(core))


NEWCOMERS_QUESTIONS = {
    "Who is allergic to what?": "my daughter is allergic to nuts",
    "At which hotel do we stay?": "Albergo Sole",
    "What is our budget?": "2400 euros",
    "When does my passport expire?": "August",
    "Which airline do I never want to fly with?": "Skyfast",
}
"""Questions in another conversation, and texts that the model must be given."""
UNKNOWN_TO_NEWCOMERS = "What did the plumber charge for the broken boiler?"


async def newcomers_conversation(world: Remembered) -> None:
    """Return a conversation in which a user tells seven things among small talk."""
    said = await world.say(
        "I'm planning a trip to Rome in May, can you help?",
        "Of course! Rome is lovely in May. When do you leave?",
        "We leave on the 14th, from Hamburg.",
        "Noted, the 14th of May from Hamburg.",
        "Please remember that my daughter is allergic to nuts.",
        "I will keep that in mind for restaurants.",
        "Our hotel is the Albergo Sole, near the Pantheon.",
        "A charming place, right in the centre.",
        "My wife Clara will join us two days later.",
        "How nice, then you can pick her up at the airport.",
        "Our budget is 2400 euros for everything.",
        "That is comfortable for a week.",
        "Also, I never fly with Skyfast again, they lost my suitcase.",
        "I understand, I will not suggest Skyfast.",
        "And my passport expires in August.",
        "Then you are fine for May.",
    )
    await world.summarise(said, size=8)
