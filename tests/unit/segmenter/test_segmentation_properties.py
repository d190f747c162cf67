"""Properties of any talk, checked against an oracle and on the episodes themselves."""

import re
from collections import defaultdict
from itertools import pairwise

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.streams.segmenter.processor import Outcome
from afterword.streams.segmenter.state import (
    Scope,
    State,
    decode_body,
    decode_seq,
    decode_state,
    digest_of,
    parse_key,
    parse_scope,
    scope_key,
    seen_key,
)
from afterword.streams.segmenter.state import prefix as prefix_of
from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import Chat, Sent, amendments, characters, episodes, flush, says
from tests.unit.segmenter.oracle import Name, told
from tests.unit.segmenter.strategies import episode_limits, pending_limits, talk

MAX_STATE_BYTES = 200
"""Maximum bytes of a conversation's state, without tenant and overrides."""
LONGEST = 7
"""The strategies allow no longer episodes."""

any_talk = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def replay(chat: Chat, happening: list[Sent | int], chunk: list[int] | None = None) -> list[Outcome]:
    """Replay the records in batches whose sizes repeat `chunk`; by default, each record is a batch."""
    outcomes: list[Outcome] = []
    batch: list[Sent] = []
    sizes = iter((chunk or [1]) * len(happening))
    size = next(sizes, 1)
    for event in happening:
        if isinstance(event, Sent):
            batch.append(event)
        if isinstance(event, int) or len(batch) == size:
            outcomes.append(chat.process(batch))
            batch, size = [], next(sizes, 1)
        if isinstance(event, int):
            chat.now_ms += event * 1000
            everyone = sorted(chat.conversations)
            outcomes.append(chat.tick(everyone))
    outcomes.append(chat.process(batch))
    return outcomes


def changes(happening: list[Sent | int]) -> bool:
    """Return whether a message is edited, deleted, or sent again with another text."""
    values = {event.value or b"" for event in happening if isinstance(event, Sent)}
    sent = [ids[1] for value in values if (ids := re.match(rb'\{"id":("[^"]*")', value))]
    return len(sent) > len({*sent}) or any(name in value for value in values for name in (b".edited", b".deleted"))


def all_episodes(outcomes: list[Outcome]) -> list[EpisodeClosed]:
    return [episode for outcome in outcomes for episode in episodes(outcome.outgoing)]


def said(messages) -> tuple[tuple[str, str], ...]:
    return tuple((m.id, m.content) for m in messages)


def name_of(episode: EpisodeClosed, limits: Episodes) -> Name:
    return episode.conversation_id, (episode.agent_id or "") if limits.scope == "agent" else None


def pending_ids(chat: Chat) -> dict[Name, list[str]]:
    """Return the ids of pending messages in the rows, in order."""
    found = defaultdict(list)
    for raw, value in sorted(chat.messages.items()):
        scope, seq = parse_key(raw)
        if seq is not None and seq >= state_of(chat, scope).first_pending:
            body = decode_body(value)
            if not body.is_gone:
                found[tuple(scope)].append(orjson.loads(body.json)["id"])
    return found


def state_of(chat: Chat, scope: Scope) -> State:
    return decode_state(chat.conversations[scope_key(scope)])


@any_talk
@given(episode_limits(), pending_limits, talk())
def test_episodes_equal_the_oracles(limits, pending, happening):
    outcomes, oracle = replay(Chat(limits, max_pending=pending), happening), told(limits, happening, pending)
    found = [
        (name_of(e, limits), e.ordinal, e.close_reason, said(e.messages), said(e.overlap))
        for e in all_episodes(outcomes)
    ]
    assert found == oracle.found
    assert sum(o.duplicates for o in outcomes) == oracle.duplicates
    assert sum(o.changed_repeats for o in outcomes) == oracle.changed_repeats
    assert sum(o.dead_letters.total() for o in outcomes) == oracle.refused
    assert sum(o.messages for o in outcomes) == sum(len(room.taken) for room in oracle.rooms.values())
    handed_on = [(a.conversation_id, a.message_id) for o in outcomes for a in amendments(o.outgoing)]
    assert handed_on == oracle.amended


@any_talk
@given(episode_limits(), pending_limits, talk(), st.lists(st.integers(1, 20), min_size=1))
def test_any_chunking_gives_the_same_records_and_state(limits, pending, happening, chunk):
    one_by_one, chunked = Chat(limits, max_pending=pending), Chat(limits, max_pending=pending)
    alone = [o for outcome in replay(one_by_one, happening) for o in outcome.outgoing]
    together = [o for outcome in replay(chunked, happening, chunk) for o in outcome.outgoing]
    assert together == alone
    assert chunked.conversations == one_by_one.conversations
    assert chunked.messages == one_by_one.messages


@any_talk
@given(episode_limits(), pending_limits, talk(), talk(max_size=20))
def test_repeated_batch_gives_the_same_result(limits, pending, past, happening):
    first = Chat(limits, max_pending=pending)
    replay(first, past)
    second = Chat(
        limits, dict(first.conversations), dict(first.messages), first.now_ms, offset=first.offset, max_pending=pending
    )
    batch = [event for event in happening if isinstance(event, Sent)]
    assert first.process(batch) == second.process(batch)
    assert (first.conversations, first.messages) == (second.conversations, second.messages)


@any_talk
@given(episode_limits(), pending_limits, talk(), st.lists(st.integers(1, 20), min_size=1))
def test_every_message_is_in_one_episode_or_pending(limits, pending, happening, chunk):
    chat = Chat(limits, max_pending=pending)
    emitted = all_episodes(replay(chat, happening, chunk))
    left = pending_ids(chat)
    oracle = told(limits, happening, pending)
    for name, expected in oracle.talks.items():
        core = [m.id for e in emitted if name_of(e, limits) == name for m in e.messages]
        placed = core + left.get(name, [])
        assert placed == [i for n, _, _, said, _ in oracle.found if n == name for i, _ in said] + [
            t.message.id for t in expected.pending
        ]
        assert len(placed) == expected.placed
        known = oracle.rooms[name[0]].taken if name[0] in oracle.rooms else []
        assert {*placed} <= {t.message.id for t in known}


@any_talk
@given(episode_limits(), pending_limits, talk())
def test_sizes_ordinals_and_overlap_are_respected(limits, pending, happening):
    by_scope, has_changes = defaultdict(list), changes(happening)
    for episode in all_episodes(replay(Chat(limits, max_pending=pending), happening)):
        by_scope[name_of(episode, limits)].append(episode)
        assert episode.message_count == len(episode.messages) <= LONGEST
        # an edit may make a sealed episode too large, which it stays
        assert has_changes or episode.token_count <= limits.max_episode_tokens or episode.message_count == 1
        assert len(episode.to_json()) < 1_000_000
    for found in by_scope.values():
        assert [e.ordinal for e in found] == list(range(1, len(found) + 1))
        assert found[0].overlap == ()
        for before, after in pairwise(found):
            kept = len(after.overlap)
            assert kept <= limits.overlap
            assert has_changes or after.overlap == before.messages[len(before.messages) - kept :]
            ids = [message.id for message in after.overlap]
            assert ids == [message.id for message in before.messages[-limits.overlap :] if message.id in ids]
            assert before.source.last_offset < after.source.first_offset


@any_talk
@given(episode_limits(), pending_limits, talk())
def test_rows_are_bounded_and_none_is_orphaned(limits, pending, happening):
    chat = Chat(limits, max_pending=pending)
    replay(chat, happening)
    seen, bodies = 0, 0
    for raw, value in chat.messages.items():
        scope, seq = parse_key(raw)
        state = state_of(chat, scope)
        if seq is None:
            seen += 1
            assert scope.agent_id is None
            assert state.window_first <= decode_seq(value) < state.next_seq
        else:
            assert state.window_first <= seq < state.next_seq
            assert (decode_body(value) is None) == (seq < state.overlap_first)
            if scope.agent_id is None:
                bodies += 1
                assert chat.messages[seen_key(prefix_of(scope), digest_of(value))] >= seq.to_bytes(8)
    assert seen <= bodies
    for key, row in chat.conversations.items():
        state = decode_state(row)
        digests = sum(map(len, (state.user, *(user for move in state.moves for user in move[1:]))))
        assert len(row) <= MAX_STATE_BYTES + len(state.overrides) + 2 * digests
        assert (state.deadline_ms == 0) == (state.pending_messages == 0)
        window = limits.dedupe_window if parse_scope(key).agent_id is None else 0
        assert state.window_first >= min(state.next_seq - window, state.overlap_first)
        assert len(state.agents or ()) <= limits.max_agents


class Interrupted(Exception):
    """The tokenizer is lost in the middle of a batch."""


@settings(max_examples=settings().max_examples // 3)
@given(episode_limits(), pending_limits, talk(max_size=30), st.integers(0, 79))
def test_failed_batch_changes_nothing(limits, pending, past, survived):
    chat, never_failed = Chat(limits, max_pending=pending), Chat(limits, max_pending=pending)
    replay(chat, past)
    replay(never_failed, past)
    before = dict(chat.conversations), dict(chat.messages)
    batch = [flush("a"), flush("b"), *says(*map(str, range(84)), conversation_id="fresh")]
    left = iter(range(survived))

    def count(text: str) -> int:
        if next(left, None) is None:
            raise Interrupted
        return characters(text)

    chat.count_tokens = count
    with pytest.raises(Interrupted):
        chat.process(batch)
    assert (chat.conversations, chat.messages) == before
    chat.count_tokens = characters
    assert chat.process(batch) == never_failed.process(batch)
    assert (chat.conversations, chat.messages) == (never_failed.conversations, never_failed.messages)
