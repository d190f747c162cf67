"""Routes that read conversations, their messages and episodes, context, and recall."""

from operator import not_
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from afterword.reading.context import CHARACTERS_A_TOKEN, Context
from afterword.reading.memory import (
    MAX_TOKENS,
    MOST_NEIGHBOURS,
    MOST_PAGE_EPISODES,
    MOST_PAGE_SIZE,
    NEIGHBOURS,
    PAGE_EPISODES,
    PAGE_SIZE,
    ConversationDetails,
    ConversationPage,
    Memory,
    MessageInContext,
    MessagePage,
    UserPage,
    hits_as_text,
)
from afterword.reading.profile import PROFILE_TOKENS, Profile
from afterword.schemas import CloseReason, SummaryCreated
from afterword.schemas.base import ANYONE, Model, Owner, PartyId, Time
from afterword.serving.outbox import Begun
from afterword.serving.problems import NotPermitted, existing
from afterword.serving.requests import (
    JSON,
    ConversationId,
    EpisodeId,
    MayAdminister,
    MayRead,
    MessageId,
    Parameters,
    Principal,
    UserId,
    Wanted,
    body_of,
)
from afterword.streams.settings import TimeZone
from afterword.streams.stores.episodes import Revision, StoredEpisode, revisions_until
from afterword.streams.stores.index import MIN_COVERAGE, MIN_SCORE_RATIO, MOST_HITS, MOST_QUERY_CHARACTERS, Recalled
from afterword.streams.tasks import apart, paced

MOST_CONTEXT_TOKENS = 1_000_000
MOST_RECENT = 500
LARGE_TOKENS, LARGE_PAGE = 32_000, 100
"""Larger contexts and pages of a key are made one after the other."""

router = APIRouter(prefix="/v1", tags=["memory"])


class TenantParameters(Parameters):
    tenant_id: PartyId | None = None
    """The tenant. Defaults to the key's tenant if it is bound to one; otherwise absent means data without a tenant."""


class OwnedParameters(TenantParameters):
    user_id: PartyId | None = None
    """The user. Defaults to the key's user if it is bound to one."""


class Paged(Parameters):
    limit: int = Field(PAGE_SIZE, ge=1, le=MOST_PAGE_SIZE)
    """Maximum number of entries on the page."""
    after: str | None = Field(None, max_length=2000)
    """`next_after` of the page before."""


class ConversationsQuery(Paged, OwnedParameters):
    """Parameters for a page of conversations."""


class UsersQuery(Paged, TenantParameters):
    prefix: PartyId = ""
    """Only users whose ids begin with this."""


class ProfileQuery(TenantParameters):
    max_tokens: int = Field(PROFILE_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)
    """Upper limit for `as_text`, in tokens."""
    time_zone: TimeZone | None = None
    """IANA name of the zone in which `as_text` shows days; defaults to the server's."""


class ProfileAnswer(Profile):
    """What is known about a user, by kind, newest first within each kind."""

    text: str = Field(alias="as_text")
    """The current facts as one text for a prompt, quoted as data; empty if nothing is known."""

    @classmethod
    def of(cls, profile: Profile) -> "ProfileAnswer":
        return cls.model_construct(**dict(profile), text=profile.as_text())


class ByAgent(Parameters):
    agent_id: PartyId | None = None
    """Only this agent's part, if episodes are kept per agent."""


class ByOwner(Parameters):
    user_id: PartyId | None = None
    """Answer 404 unless the conversation began with this user."""
    tenant_id: PartyId | None = None
    """Answer 404 unless the conversation belongs to this tenant."""

    def owner(self, principal: Principal) -> dict[str, Any]:
        return principal.asserted(self.user_id, self.tenant_id)._asdict()


class ConversationQuery(ByAgent, ByOwner):
    """Parameters for one conversation, or an agent's part of it."""


class ContextQuery(ByAgent, ByOwner):
    user_id: PartyId | None = None
    """Only the messages of this user and the answers to them, unless the conversation began with the user. Answer 404
    if there are none."""
    max_tokens: int = Field(MAX_TOKENS, ge=1, le=MOST_CONTEXT_TOKENS)
    """Upper limit for the context, in tokens."""
    keep_recent: int | None = Field(None, ge=0, le=MOST_RECENT)
    """Number of last messages beside a summary; by default, or unless a preset sets it, all messages that fit."""
    form: Literal["messages", "text"] | None = None
    """Adds a form for prompts: `messages` fills `as_messages`, `text` fills `as_text`."""
    profile: bool = False
    """Put what is known about the user first, in at most a quarter of the tokens."""
    time_zone: TimeZone | None = None
    """IANA name of the zone in which the forms for prompts show times; defaults to the server's."""


class EpisodesQuery(ByAgent, ByOwner):
    limit: int = Field(PAGE_EPISODES, ge=1, le=MOST_PAGE_EPISODES)
    """Maximum number of episodes on the page."""
    before: int | None = Field(None, ge=1, le=2**53)
    """`next_before` of the page before: only smaller ordinals."""


class MessagesQuery(ByAgent, ByOwner):
    limit: int = Field(PAGE_SIZE, ge=1, le=MOST_PAGE_SIZE)
    """Maximum number of messages on the page."""
    before: int | None = Field(None, ge=0, le=2**53)
    """`next_before` of the page before."""


class WithNeighbours(Parameters):
    neighbours: int = Field(NEIGHBOURS, ge=0, le=MOST_NEIGHBOURS)
    """Messages before it, and as many after it."""


class MessageQuery(WithNeighbours, ByOwner):
    """Parameters for one message."""


class RecallBody(Model):
    """A search in the episodes that a user wrote in."""

    model_config = ConfigDict(extra="forbid")

    query: Annotated[str, Field(min_length=1, max_length=10 * MOST_QUERY_CHARACTERS)]
    """Text to search for, in any words. Only the first 2,000 characters are used."""
    user_id: PartyId | None = None
    """The user. If the key is bound to one, it may be null or absent."""
    tenant_id: PartyId | None = None
    """The tenant. Defaults to the key's tenant if it is bound to one; otherwise null means episodes without a
    tenant."""
    k: Annotated[int, Field(ge=1, le=MOST_HITS)] = 5
    """Maximum number of hits."""
    agent_id: PartyId | None = None
    """Only episodes of this agent."""
    conversation_id: PartyId | None = None
    """Only episodes of this conversation."""
    current_conversation_id: PartyId | None = None
    """The conversation in which this is asked. Its own messages that are in no episode yet are left out."""
    started_after: Time | None = None
    """Only episodes whose first message was sent at this time or later."""
    ended_before: Time | None = None
    """Only episodes whose last message was sent before this time."""
    min_coverage: Annotated[float, Field(ge=0, le=1)] = MIN_COVERAGE
    """Share of the query that the best hit must cover. If none does, there are no hits: the user never talked about
    this."""
    min_score_ratio: Annotated[float, Field(ge=0, le=1)] = MIN_SCORE_RATIO
    """Hits whose share of the best score is lower are left out."""
    time_zone: TimeZone | None = None
    """IANA name of the user's zone, in which days like "yesterday" are counted, and shown in `as_text`; defaults to the
    server's."""
    form: Literal["text"] | None = None
    """`text` fills `as_text`, for a prompt."""


class RecallAnswer(Model):
    """The hits of a search, best first."""

    hits: tuple[Recalled, ...]
    """At most `k` hits; none if the user never talked about this."""
    as_text: str | None = None
    """With `form=text`: the hits as one text for a model, fenced as data, or a statement that nothing is known."""
    by_words: bool = Field(False, exclude_if=not_)
    """`true` if words alone were compared, because the embedder did not answer in time; otherwise absent."""


class EpisodeDocument(SummaryCreated):
    """The last revision of an episode: its `summary.created` and the inputs of the summary."""

    fingerprint: str
    """Fingerprint of its `episode.closed`."""
    close_reason: CloseReason
    """Why the episode was closed."""
    overlap_ids: tuple[str, ...]
    """Ids of messages of the previous episode that the LLM was also given."""
    revisions: tuple[Revision, ...]
    """Up to 20 revisions of the episode, this one last. Earlier revisions' texts are not kept."""

    @classmethod
    def of(cls, stored: StoredEpisode) -> "EpisodeDocument":
        more = {name: getattr(stored, name) for name in ("fingerprint", "close_reason", "overlap_ids")}
        return cls.model_construct(**dict(stored.summary), **more, revisions=revisions_until(stored))


class EpisodesAnswer(Model):
    """Episodes, newest first."""

    episodes: tuple[EpisodeDocument, ...]
    """The episodes on the page."""
    next_before: int | None
    """`before` for the next page; null if this is the last page."""


class ContextAnswer(Context):
    """A condensed conversation, for an agent that continues it."""

    profile: ProfileAnswer | None = None
    """What is known about the user, with `profile=true`."""
    turns: tuple[dict[str, str], ...] | None = Field(None, alias="as_messages")
    """With `form=messages`: everything in the format of OpenAI's chat API. The first message holds the summaries,
    fenced."""
    text: str | None = Field(None, alias="as_text")
    """With `form=text`: everything as one text. Further lines of a message are indented."""

    @classmethod
    def of(cls, context: Context, form: Literal["messages", "text"] | None = None) -> "ContextAnswer":
        fields = dict(context) | {"profile": ProfileAnswer.of(context.profile) if context.profile else None}
        turns = tuple(context.as_messages()) if form == "messages" else None
        return cls.model_construct(**fields, turns=turns, text=context.as_text() if form == "text" else None)


@router.get("/conversations")
async def list_conversations(caller: MayRead, wanted: Wanted[ConversationsQuery]) -> ConversationPage:
    """List the conversations that a user began, the most recently summarized first.

    A conversation appears with its first summary. If episodes are kept per agent, each agent's part is listed
    separately.
    """
    user_id, tenant_id = caller.user(wanted.user_id), caller.tenant(wanted.tenant_id)
    memory = caller.memory
    return await memory.conversations(user_id=user_id, tenant_id=tenant_id, limit=wanted.limit, after=wanted.after)


@router.get("/users")
async def list_users(caller: MayAdminister, wanted: Wanted[UsersQuery]) -> UserPage:
    """List the users who take part in a tenant's episodes, last active first. Needs a key with `admin`."""
    if caller.user_id is not ANYONE:
        raise NotPermitted(problem="the key is bound to one user")
    return await caller.memory.users(
        tenant_id=caller.tenant(wanted.tenant_id), limit=wanted.limit, after=wanted.after, prefix=wanted.prefix
    )


@router.get("/users/{user_id}/profile")
async def get_profile(caller: MayRead, user_id: UserId, wanted: Wanted[ProfileQuery]) -> ProfileAnswer:
    """Show what is known about a user, each fact with the messages that state it, and what was superseded."""
    profile = await caller.memory.profile(
        caller.user(user_id), caller.tenant(wanted.tenant_id), wanted.max_tokens, time_zone=wanted.time_zone
    )
    return ProfileAnswer.of(profile)


@router.get("/conversations/{conversation_id}")
async def get_conversation(
    caller: MayRead, conversation_id: ConversationId, wanted: Wanted[ConversationQuery]
) -> ConversationDetails:
    """Show a conversation's title, counts and last activity."""
    memory = caller.memory
    conversation = await memory.conversation(conversation_id, wanted.agent_id, **wanted.owner(caller))
    return existing("conversation", conversation)


@router.get("/conversations/{conversation_id}/context")
async def get_context(caller: MayRead, conversation_id: ConversationId, wanted: Wanted[ContextQuery]) -> ContextAnswer:
    """Return what an agent needs to continue, within `max_tokens`: all messages, or a summary and the last ones.

    It is empty in the moment after a conversation's first message, until the archive has it.
    """
    services, owner = caller.services, caller.asserted(wanted.user_id, wanted.tenant_id)
    given = wanted.model_dump(exclude={"user_id", "tenant_id", "form"})
    async with services.turns.if_large(caller.key_id, wanted.max_tokens > LARGE_TOKENS):
        context = await known_context(services.memory, services.outbox.begun, owner, conversation_id, **given)
        return await apart(CHARACTERS_A_TOKEN * context.tokens, ContextAnswer.of, context, wanted.form)


async def known_context(memory: Memory, begun: Begun, owner: Owner, conversation_id: str, **given: Any) -> Context:
    """Return `Memory.context`, or an empty one if nothing of a new conversation is archived yet. Raises: NotFound."""
    context = await memory.context(conversation_id, **given, **owner._asdict())
    if context is None and begun.is_of(owner, conversation_id) and await memory.owner(conversation_id) is None:
        context = Context(conversation_id=conversation_id)
    return existing("conversation", context)


@router.get("/conversations/{conversation_id}/episodes", response_model=EpisodesAnswer)
async def list_episodes(caller: MayRead, conversation_id: ConversationId, wanted: Wanted[EpisodesQuery]) -> Response:
    """List a conversation's episodes, newest first. The list is empty if it is unknown or belongs to somebody else."""
    services, owner = caller.services, wanted.owner(caller)
    async with services.turns.if_large(caller.key_id, wanted.limit > LARGE_PAGE):
        page = await services.memory.episodes(conversation_id, wanted.limit, wanted.before, wanted.agent_id, **owner)
        episodes = [EpisodeDocument.of(one).model_dump_json() async for one in paced(page.episodes)]
    content = f'{{"episodes":[{",".join(episodes)}],"next_before":{page.next_before or "null"}}}'
    return Response(content, media_type=JSON)


@router.get("/conversations/{conversation_id}/messages")
async def list_messages(caller: MayRead, conversation_id: ConversationId, wanted: Wanted[MessagesQuery]) -> MessagePage:
    """List a conversation's archived messages, newest first."""
    services, owner = caller.services, wanted.owner(caller)
    async with services.turns.if_large(caller.key_id, wanted.limit > LARGE_PAGE):
        page = await services.memory.messages(conversation_id, wanted.limit, wanted.before, wanted.agent_id, **owner)
    return existing("conversation", page)


@router.get("/conversations/{conversation_id}/messages/{message_id}")
async def get_message(
    caller: MayRead, conversation_id: ConversationId, message_id: MessageId, wanted: Wanted[MessageQuery]
) -> MessageInContext:
    """Show an archived message with the messages before and after it."""
    message = await caller.memory.message(conversation_id, message_id, wanted.neighbours, **wanted.owner(caller))
    return existing("message", message)


@router.get("/episodes/{episode_id}")
async def get_episode(caller: MayRead, episode_id: EpisodeId, wanted: Wanted[ByOwner]) -> EpisodeDocument:
    """Show the last revision of an episode and list earlier ones, whose texts are not kept."""
    episode = await caller.memory.episode(episode_id, **wanted.owner(caller))
    return EpisodeDocument.of(existing("episode", episode))


@router.post("/recall", name="recall")
async def search_episodes(caller: MayRead, wanted: Annotated[RecallBody, body_of(RecallBody)]) -> RecallAnswer:
    """Search the episodes that a user wrote in, best match first.

    Messages of other people, titles and summaries are shown to the user who began the episode or the conversation, and
    to nobody else.
    """
    filters = wanted.model_dump(exclude={"query", "user_id", "tenant_id", "form"})
    memory = caller.memory
    hits = await memory.recall(
        wanted.query, user_id=caller.user(wanted.user_id), tenant_id=caller.tenant(wanted.tenant_id), **filters
    )
    as_text = hits_as_text(hits) if wanted.form else None
    return RecallAnswer(hits=tuple(hits), as_text=as_text, by_words=memory.by_words)
