"""The context that an agent loads to continue a conversation: all of it, or its summaries and the last messages.

`fit` and `fit_into` decide without I/O; `read_context` reads a bounded number of documents for them.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from itertools import accumulate, pairwise, takewhile
from typing import NamedTuple
from zoneinfo import ZoneInfo

from pydantic import computed_field

from afterword.reading.profile import KNOWN, Profile
from afterword.schemas import MessageCreated
from afterword.schemas.base import Model
from afterword.schemas.messages import replaced_answers
from afterword.streams.stores.episodes import Conversation, EpisodeStore
from afterword.streams.stores.messages import ArchivedMessage, Counted, MessageArchive, Selection
from afterword.streams.tasks import apart
from afterword_text.fences import GAP, INDENTATION, NAMED, SPEAKERS, indented, one_name, quotation, speaker_of
from afterword_text.sentences import split_sentences, without_middle
from afterword_text.tokens import count_tokens, groups, water_level
from afterword_text.visible import without_hidden

MOST_MESSAGES = 500
"""One pass over the archive loads at most this many messages."""
LONGEST_GROUP = 50
"""At most this many more messages are loaded to find the call of the oldest result."""
SUMMARY_SHARE = 2
"""Title and summaries take at most 1 / SUMMARY_SHARE of the tokens."""
MOST_LOADED = 8_000_000
"""One pass stops at this many characters, so that a context of long messages takes little memory."""
SHORTEST_MESSAGE_TOKENS = 16
"""A message cut to less than this is useless, and left out."""
MOST_CHARACTERS = 16_000
"""Sentences are selected from at most this many characters, taken from the beginning of each row."""
CHARACTERS_A_TOKEN = 8
"""An upper estimate for most texts. It gives the first guess at where to cut; the text then shrinks until it fits."""
MOST_BEHIND = 20
"""Up to this many recent episodes that no rolling row covers yet are shown with their own summaries."""

FRAME_TOKENS = 52
"""Tokens of the labels, the lines around a quotation, and the time of the first message."""
RECENT = 4
RECENT_TOKENS = 1000
"""Unless a caller wants otherwise, at least RECENT messages, and more up to this many tokens, are never replaced by a
summary."""
SAVING = 2
"""A summary replaces messages that would fit only if this leaves at most 1 / SAVING of the tokens."""
LAST_ROWS = 7
"""Of a long conversation, the first row of the rolling summary and this many of the latest ones are read."""
LATE = timedelta(minutes=5)
"""A message is late if it was sent this long before the one that precedes it; clocks differ by less."""
SUMMARY = "Summary so far"
TIME = "%Y-%m-%d %H:%M"
SHORTEST_SENTENCE = 12
"""Characters. "Yes." is in many messages."""
_SPEAKER = re.compile(f"(?:{SPEAKERS}){NAMED}")
_NEXT_SPEAKER = re.compile(f" (?={_SPEAKER.pattern})")
"""Matches before each speaker but the first in a line of a summary made without an LLM."""


class Context(Model):
    """A condensed conversation, for an agent that continues it. By default, nothing of it is archived yet.

    Token counts cover the texts alone, for the context and for all messages alike. `max_tokens` limits the whole of
    `as_text` and `as_messages`, including labels and roles.
    """

    conversation_id: str
    """Id of the conversation."""
    title: str = ""
    """Empty until the first episode is summarized."""
    rolling_summary: str = ""
    """Summary of the conversation, condensed if it exceeds its share of the tokens. Empty until the first episode is
    summarized."""
    recent_summaries: tuple[str, ...] = ()
    """Short summaries of the episodes that are not yet in the rolling summary, oldest first."""
    episode_count: int = 0
    """Number of summarized episodes."""
    messages: tuple[MessageCreated, ...] = ()
    """Messages, oldest first and verbatim, except those in `shortened`."""
    shortened: tuple[str, ...] = ()
    """Ids of messages that were too long and lost their middle."""
    omitted: int = 0
    """Number of messages that did not fit, among the last ones and those not yet summarized. It may be too low if these
    have more than 8 million characters."""
    tokens: int = 0
    """Tokens in all texts of this answer."""
    tokens_full: int = 0
    """Tokens in all messages of the conversation."""
    events: int = 0
    """Number of messages, plus 1 for the summary."""
    events_full: int = 0
    """Number of messages in the conversation."""
    verbatim: bool = True
    """Whether all of the conversation's messages are returned, and no summary."""
    profile: Profile | None = None
    """What is known about the user, if requested. It comes first, and no count here includes it."""
    time_zone: str = "UTC"
    """The zone in which the texts show times."""

    @computed_field  # type: ignore[prop-decorator]  # mypy does not support decorators above property
    @property
    def compression(self) -> float:
        """1 − tokens / tokens_full."""
        return 1 - self.tokens / self.tokens_full if self.tokens_full else 0.0

    @computed_field  # type: ignore[prop-decorator]  # as above
    @property
    def events_compression(self) -> float:
        """1 − events / events_full."""
        return 1 - self.events / self.events_full if self.events_full else 0.0

    def as_messages(self) -> list[dict[str, str]]:
        """Return messages in the format of OpenAI's chat API.

        The first ones are system messages with the profile and with the summaries, if there are any. The profile comes
        first because it changes least. A tool's result becomes a user message, because `role: tool` requires the id of
        its call, which is unknown. If several people speak, each of their messages begins with the name. Where messages
        are not in the order in which they were sent, or an hour apart, users' begin with the time.
        """
        known = "\n".join(self.summary_lines(without_hidden))
        summary = [{"role": "system", "content": quotation(known, SUMMARY)}] if known else []
        times = _times(self.messages, self.time_zone)
        known_of_user = self.profile.as_text() if self.profile else ""
        first = [{"role": "system", "content": known_of_user}] if known_of_user else []
        is_group = len({m.author for m in self.messages if m.role == "user" and m.author}) > 1
        turns = zip(self.messages, times, strict=True)
        return first + summary + [_as_turn(message, time, named=is_group) for message, time in turns]

    def as_text(
        self,
        clean: Callable[[str], str] = without_hidden,
        end: Callable[[MessageCreated], str] = lambda _: "",
    ) -> str:
        """Return the context as one text for a prompt: labelled summary and messages, one speaker per line.

        Messages have their times where they are not in the order in which they were sent, or an hour apart.
        Every line except labels and the first line of a message is indented, so that no text can pass for either.
        `clean` is applied to each foreign text, and `end` is put after each message.
        """
        known = "\n".join(self.summary_lines(clean))
        times = _times(self.messages, self.time_zone)
        messages = zip(self.messages, times, strict=True)
        turns = "\n".join(time + _as_line(message, clean) + end(message) for message, time in messages)
        left_out = f" ({self.omitted} earlier ones left out)" if self.omitted else ""
        of_user = "\n".join(self.profile.lines(clean)) if self.profile else ""
        parts = ((KNOWN, of_user), (SUMMARY, known), (f"Last messages{left_out}", turns))
        return "\n".join(f"{label}:\n{text}" for label, text in parts if text)

    def summary_lines(self, clean: Callable[[str], str] = str) -> list[str]:
        """Return the title and the summaries, one speaker per line, all indented."""
        return Summaries(self.title, (self.rolling_summary,), self.recent_summaries).lines(clean)


def _as_line(message: MessageCreated, clean: Callable[[str], str] = str) -> str:
    return f"{speaker_of(message.role, clean(message.author or ''))}: {indented(clean(message.content))}"


def _needs_time(before: MessageCreated, message: MessageCreated) -> bool:
    """Return whether the order of two adjacent messages alone would mislead."""
    if before.sent_at is None or message.sent_at is None:
        return False
    return not -LATE < message.sent_at - before.sent_at < GAP


def _times(messages: Sequence[MessageCreated], time_zone: str) -> list[str]:
    """Return what stands before each message: its time, or nothing. If any has a time, so has the first one."""
    needed = [_needs_time(*pair) for pair in pairwise(messages)]
    zone = ZoneInfo(time_zone)
    shown = zip(messages, [any(needed), *needed], strict=False)
    return [
        f"{message.sent_at.astimezone(zone):{TIME}}, " if is_dated and message.sent_at else ""
        for message, is_dated in shown
    ]


def _cost(messages: Sequence[MessageCreated]) -> int:
    """Count the tokens of messages as they are shown to a model, without the time of the first one."""
    times = ["", *_times(messages, "UTC")[1:]]
    return sum(count_tokens(f"{time}{_as_line(message)}\n") for message, time in zip(messages, times, strict=False))


def _as_turn(message: MessageCreated, time: str, *, named: bool) -> dict[str, str]:
    if message.role != "tool":
        is_user = message.role == "user"  # a model that sees times before its own answers writes some itself
        name = one_name(message.author) if named and is_user else ""
        before = (time if is_user else "") + (f"{name}: " if name else "")
        return {"role": message.role, "content": without_hidden(before + message.content)}
    of = f" of {', '.join(message.tools)}" if message.tools else ""
    return {"role": "user", "content": f"Result{of}: {without_hidden(message.content)}"}


class Summaries(NamedTuple):
    """A conversation's summaries, which replace the messages of its episodes."""

    title: str = ""
    rolling: tuple[str, ...] = ()
    """One text per row of the rolling summary, oldest first."""
    recent: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        return sum(map(count_tokens, (self.title, *self.rolling, *self.recent)))

    @property
    def cost(self) -> int:
        """Number of tokens as shown to a model."""
        return _shown_tokens("\n".join(filter(None, (self.title, *self.rolling, *self.recent))))

    def lines(self, clean: Callable[[str], str] = str) -> list[str]:
        texts = (clean(text) for text in (self.title, *self.rolling, *self.recent) if text)
        return [line for text in texts for line in _indented_turns(text)]


def _indented_turns(text: str) -> list[str]:
    return [INDENTATION.lstrip("\n") + line for line in _NEXT_SPEAKER.sub("\n", text).splitlines()]


def _shown_tokens(text: str) -> int:
    """Count the tokens of a summary as it is shown to a model."""
    return count_tokens("\n".join(_indented_turns(text)))


class ContextWindow(NamedTuple):
    """The messages that fit into a context."""

    messages: tuple[MessageCreated, ...] = ()
    tokens: int = 0
    shortened: tuple[str, ...] = ()
    """Ids of the messages that lost their middle."""
    cost: int = 0
    """Number of tokens as shown to a model."""


async def read_context(
    episodes: EpisodeStore,
    archive: MessageArchive,
    selection: Selection,
    known: Conversation | None,
    keep_recent: int | None,
    max_tokens: int,
) -> Context:
    """Read the context of a conversation or of an agent's part of it; `keep_recent` is as for `Memory.context`.

    `known` is None if nothing is summarized yet. `selection` selects all messages.
    It makes a handful of queries. However long the conversation is, `max_tokens` and MOST_MESSAGES limit the number of
    messages loaded, and LAST_ROWS that of summaries. Raises: StoreUnavailable.
    """
    uncovered = replace(selection, unsummarised=known is not None)
    counted = await archive.count(uncovered)
    tokens_full = counted.tokens + (known.token_count if known else 0)
    events_full = counted.messages + (known.message_count if known else 0)
    room = max(0, max_tokens - FRAME_TOKENS)
    recent = RECENT if keep_recent is None else keep_recent
    whole: ContextWindow | None = None
    if known and keep_recent is None and tokens_full <= room:
        whole = await _verbatim(archive, selection, events_full, recent, room)
    if whole and tokens_full <= RECENT_TOKENS:
        summaries, window, omitted = Summaries(), whole, 0
    else:
        stored = await _summaries(episodes, selection, known) if known else Summaries()
        summaries = await _fitted(stored, room // SUMMARY_SHARE)
        least_tokens = 0 if keep_recent is not None else RECENT_TOKENS
        window, omitted = await _window(archive, uncovered, counted, recent, least_tokens, room - summaries.cost)
        if not window.messages:
            summaries = await _fitted(stored, room)
        summaries = await apart(_characters(window.messages), without_shown, summaries, window.messages)
        condensed = window.tokens + summaries.tokens
        if known and keep_recent and condensed >= tokens_full:
            whole = await _verbatim(archive, selection, events_full, recent, room)
        if whole and (keep_recent or condensed * SAVING > tokens_full):
            summaries, window, omitted = Summaries(), whole, 0
        else:
            whole = None
    return Context(
        conversation_id=selection.conversation_id,
        title=summaries.title,
        rolling_summary="\n".join(summaries.rolling),
        recent_summaries=summaries.recent,
        episode_count=known.episode_count if known else 0,
        messages=window.messages,
        shortened=window.shortened,
        omitted=omitted,
        tokens=summaries.tokens + window.tokens,
        tokens_full=tokens_full,
        events=len(window.messages) + (summaries != Summaries()),
        events_full=events_full,
        verbatim=whole is not None,
    )


async def _verbatim(
    archive: MessageArchive, selection: Selection, events_full: int, recent: int, max_tokens: int
) -> ContextWindow | None:
    """Return all messages of a conversation if they fit; None if not, or if the archive lacks some of them.

    As in a context with a summary, skipped messages are only included among the last ones.
    """
    if events_full > MOST_MESSAGES:
        return None
    newest = await newest_messages(archive, selection, events_full)
    last = {archived.message.id for archived in newest[:recent]}
    messages = [archived.message for archived in reversed(newest)]
    replaced = replaced_answers(message for message in messages if not message.skip_summarization)
    shown = [m for m in messages if m.id not in replaced and (not m.skip_summarization or m.id in last)]
    if len(newest) < events_full or await apart(_characters(shown), _cost, shown) > max_tokens:
        return None
    return ContextWindow(tuple(shown), await apart(_characters(shown), _tokens, shown))


def _characters(messages: Iterable[MessageCreated]) -> int:
    return sum(len(message.content) for message in messages)


async def _fitted(summaries: Summaries, max_tokens: int) -> Summaries:
    if summaries.cost <= max_tokens:
        return summaries
    return await asyncio.to_thread(fit_into, summaries, max_tokens)  # it may load the languages


async def _summaries(episodes: EpisodeStore, selection: Selection, known: Conversation) -> Summaries:
    rows = await episodes.rows_at_ends(known.conversation_id, LAST_ROWS)
    texts = tuple(row.content for row in rows if row.content)
    covered = rows[-1].last_ordinal if rows else 0
    behind = min(known.last_ordinal - covered, MOST_BEHIND)
    if behind <= 0:
        return Summaries(known.title, texts)
    latest = await episodes.latest(selection.conversation_id, behind, agent_id=selection.agent_id)
    behind_row = (e.summary for e in reversed(latest) if covered < e.summary.ordinal <= known.last_ordinal)
    recent = tuple(summary.short_summary for summary in behind_row if summary.short_summary)
    return Summaries(known.title, texts, recent)


def fit_into(summaries: Summaries, max_tokens: int) -> Summaries:
    """Fit the summaries into `max_tokens`, dropping sentences if necessary.

    Recent ones keep at least half of the space.
    """
    room = max_tokens
    fitted = summaries
    while fitted.cost > max_tokens:  # once as a rule: the parts may have fewer tokens than the whole
        fitted = _condensed(summaries, room)
        room -= max(1, fitted.cost - max_tokens)
    return fitted


def _condensed(summaries: Summaries, max_tokens: int) -> Summaries:
    """Keep the recent summaries first, then the latest row, and then the best sentences of the earlier rows."""
    # imported here because few contexts need it, and numpy and the languages take longer to load than everything else
    from afterword_text.extractive import whole_sentences

    title = summaries.title if _shown_tokens(summaries.title) <= max_tokens // 4 else ""
    room = max(0, max_tokens - _shown_tokens(title) - 1)
    of_recent = max(room // 2, room - sum(map(_shown_tokens, summaries.rolling)))
    recent = whole_sentences("\n".join(summaries.recent), of_recent, _shown_tokens)
    room -= _shown_tokens(recent) + 1
    latest = whole_sentences("".join(summaries.rolling[-1:]), max(0, room), _shown_tokens)
    each = MOST_CHARACTERS // max(len(summaries.rolling), 1)
    rows = "\n".join(row[:each] for row in summaries.rolling[:-1])
    earlier = whole_sentences(rows, max(0, room - _shown_tokens(latest) - 1), _shown_tokens)
    return Summaries(title, tuple(filter(None, (earlier, latest))), tuple(recent.splitlines()))


def without_shown(summaries: Summaries, messages: Iterable[MessageCreated]) -> Summaries:
    """Leave out the sentences that are shown as messages too; a summary without an LLM consists of such sentences."""
    shown = "\n".join(" ".join(message.content.split()) for message in messages)
    left = (
        tuple(filter(None, (_without(text, shown) for text in texts)))
        for texts in (summaries.rolling, summaries.recent)
    )
    return Summaries(summaries.title, *left)


def _without(text: str, shown: str) -> str:
    lines = [[_unsaid(turn, shown) for turn in _NEXT_SPEAKER.split(line)] for line in text.splitlines()]
    return "\n".join(" ".join(filter(None, line)) for line in lines if any(line))


def _unsaid(turn: str, shown: str) -> str:
    """Return the sentences of a speaker that are not among the shown ones."""
    label = _SPEAKER.match(turn)
    said = turn[label.end() if label else 0 :]
    sentences = split_sentences(said)
    left = [
        sentence for sentence in sentences if len(sentence) < SHORTEST_SENTENCE or sentence.rstrip(".") not in shown
    ]
    if len(left) == len(sentences):
        return turn
    return (
        (label[0] if label else "") + " ".join(left)
        if any(len(sentence) >= SHORTEST_SENTENCE for sentence in left)
        else ""
    )


async def _window(
    archive: MessageArchive,
    uncovered: Selection,
    counted: Counted,
    recent: int,
    recent_tokens: int,
    max_tokens: int,
) -> tuple[ContextWindow, int]:
    """Return the last messages, at least `recent` and more up to `recent_tokens`, with all that are pending.

    Also return how many did not fit.
    """
    recent = min(recent, MOST_MESSAGES)
    # at least as many as the last ones, to know which of those are pending
    loaded = await newest_messages(archive, uncovered, recent, max_tokens * CHARACTERS_A_TOKEN)
    pending = {one.message.id for one in loaded if not (uncovered.unsummarised and one.message.skip_summarization)}
    every = replace(uncovered, unsummarised=False)
    least = max(recent, len(loaded))
    latest = await newest_messages(archive, every, least, recent_tokens * CHARACTERS_A_TOKEN if recent_tokens else 0)
    last = {one.message.id for one in latest[:recent]}
    by_id = {one.message.id: one for one in (*latest, *loaded)}
    # in log order, because producers' clocks differ
    messages = [one.message for one in sorted(by_id.values(), key=lambda archived: archived.offset)]
    replaced = replaced_answers(message for message in messages if not message.skip_summarization)
    said = [message for message in messages if message.id not in replaced]
    size = _characters(messages)
    beside = await apart(size, _newest_within, latest, recent_tokens)
    window = await apart(size, fit, said, pending | last | beside, max_tokens)
    shown = {message.id for message in window.messages}
    skipped = counted.skipped if uncovered.unsummarised else 0
    omitted = counted.messages - skipped - len((shown | replaced) & pending) + len(last - pending - shown - replaced)
    return window, omitted


def _newest_within(latest: Iterable[ArchivedMessage], tokens: int) -> set[str]:
    """Return the ids of the newest messages that have at most this many tokens, without skipped ones."""
    said = [archived.message for archived in latest if not archived.message.skip_summarization] if tokens else []
    sizes = accumulate(count_tokens(message.content) for message in said)
    return {message.id for message, _ in takewhile(lambda each: each[1] <= tokens, zip(said, sizes, strict=False))}


async def newest_messages(
    archive: MessageArchive, selection: Selection, least: int, characters: int = 0, most_beyond: int = LONGEST_GROUP
) -> list[ArchivedMessage]:
    """Load at least the `least` newest messages, and more until they have `characters` characters, newest first.

    It then loads up to `most_beyond` more, back to a user's message, so that a tool's result comes with its call. It
    stops at MOST_LOADED characters.
    """
    loaded: list[ArchivedMessage] = []
    size = beyond = 0
    async with aclosing(archive.newest(selection)) as newest:
        async for archived in newest:
            loaded.append(archived)
            size += len(archived.message.content)
            if len(loaded) >= least and (size >= characters or len(loaded) >= MOST_MESSAGES):
                beyond += 1
                if archived.message.role == "user" or beyond > most_beyond:
                    break
            if size >= MOST_LOADED:
                break
    return loaded


def fit(messages: Sequence[MessageCreated], wanted: Collection[str], max_tokens: int) -> ContextWindow:
    """Select the newest `wanted` messages (by id), each with its whole group. The newest group is shortened if need be.

    `messages` are in order, oldest first. There is no gap among the wanted messages that are shown.
    """
    window = ContextWindow()
    whole = [[messages[at] for at in group] for group in groups(messages)]
    for group in reversed([group for group in whole if any(message.id in wanted for message in group)]):
        between = _times([group[-1], *window.messages[:1]], "UTC")[1:]
        cost = window.cost + _cost(group) + sum(map(count_tokens, between))
        if cost > max_tokens:
            return window if window.messages else _shortened(group, max_tokens)
        window = ContextWindow((*group, *window.messages), window.tokens + _tokens(group), cost=cost)
    return window


def _tokens(messages: Iterable[MessageCreated]) -> int:
    return sum(count_tokens(message.content) for message in messages)


def _shortened(group: Sequence[MessageCreated], max_tokens: int) -> ContextWindow:
    """Cut the group's longest messages to the same length. Returns an empty window if too little would be left."""
    sizes = [_cost([message]) for message in group]
    level = water_level(sizes, max_tokens)
    if level < SHORTEST_MESSAGE_TOKENS:
        return ContextWindow()
    cut = [_cut(m, level) if size > level else m for m, size in zip(group, sizes, strict=True)]
    ids = tuple(m.id for m, size in zip(group, sizes, strict=True) if size > level)
    return ContextWindow(tuple(cut), _tokens(cut), ids, _cost(cut))


def _cut(message: MessageCreated, tokens: int) -> MessageCreated:
    characters = tokens * CHARACTERS_A_TOKEN
    cut = message
    while characters > 0:
        cut = message.model_copy(update={"content": without_middle(message.content, characters)})
        if _cost([cut]) <= tokens:
            return cut
        characters = characters * 9 // 10
    return message.model_copy(update={"content": ""})
