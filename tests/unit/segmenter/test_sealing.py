"""With sealing, nothing that the segmenter keeps or sends can be read without the keys of its users."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.schemas.dead_letters import read_dead_letter
from afterword.streams.errors import SealedWithoutKey
from afterword.streams.sealing.codec import digest_of_owner
from afterword.streams.sealing.opening import SealingWithKeys
from afterword.streams.segmenter.agent import owners_of
from afterword.streams.segmenter.processor import ROOMY, Outcome, Outgoing, Room
from afterword.streams.segmenter.shifts import TopicListener
from afterword.streams.segmenter.state import decode_state
from afterword.streams.settings import Crypto, Episodes
from afterword.streams.stores.user_keys import KeyOwner
from tests.doubles.stores import MemoryUserKeys
from tests.unit.segmenter.chat import (
    DEAD_LETTERS,
    NOON,
    RUNNER,
    Chat,
    Sent,
    amendments,
    delete,
    edit,
    episodes,
    flush,
    ids,
    limits,
    say,
    says,
)
from tests.unit.segmenter.strategies import talk

NEEDLE, USER = "needle-7f3a", "needle-user"
KEY = "MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTE="


def sealing(store: MemoryUserKeys | None = None, seal: str = "on") -> SealingWithKeys:
    crypto = Crypto.model_validate({"seal": seal, "key": KEY})
    return SealingWithKeys(crypto, MemoryUserKeys() if store is None else store)


class SealedChat(Chat):
    """A chat that fetches keys and gives the rest again, as the agent does."""

    fetches = 0

    def process(self, records: Iterable[Sent], room: Room = ROOMY) -> Outcome:
        return self._whole(list(records), lambda left: super(SealedChat, self).process(left, room))

    def tick(self, due: Sequence[bytes]) -> Outcome:
        return self._whole(list(due), lambda left: super(SealedChat, self).tick(left))

    def _whole(self, work, step) -> Outcome:
        total, done = Outcome(), 0
        while True:
            start = self.offset
            outcome = step(work[done:])
            if work and isinstance(work[0], Sent):
                self.offset = start + outcome.done
            total.outgoing += outcome.outgoing
            total.begun += outcome.begun
            done += outcome.done
            if not outcome.needed:
                return total
            assert self.sealing
            self.fetches += 1
            RUNNER.run(self.sealing.fetch(outcome.needed))


def opened(chat: Chat, outgoing: Iterable[Outgoing]) -> list[EpisodeClosed]:
    assert chat.sealing
    keys = chat.sealing
    found = [RUNNER.run(keys.waited(lambda e=event: keys.opened(e))) for event in episodes(outgoing)]
    return [EpisodeClosed.model_validate(dict(event)) for event in found]


def texts(chat: Chat, outcome: Outcome) -> bytes:
    rows = [part for table in (chat.conversations, chat.messages) for row in table.items() for part in row]
    return b"\n".join([*(repr(one).encode() for one in outcome.outgoing), *rows])


LOG = [
    say("1", f"I am {NEEDLE}", user_id=USER, tools=[NEEDLE], flows=[NEEDLE], sentiment=0.5, metadata={"a": NEEDLE}),
    say("2", "Fine.", role="assistant", user_id=USER),
    edit("2", content=f"Fine, {NEEDLE}."),
    Sent(b"c", f'{{"content": "{NEEDLE}"}}'.encode(), headers=(("about", NEEDLE.encode()),)),
    flush(reason=NEEDLE),
    say("3", f"Pending {NEEDLE}", user_id=USER),
    delete("1", reason=NEEDLE),
    edit("1", content=f"Late: {NEEDLE}"),
]


def test_no_row_and_no_record_has_a_content_or_a_user_and_the_key_opens_them() -> None:
    chat = SealedChat(sealing=sealing(), limits=limits(overlap=1))
    outcome = chat.process(LOG)
    found = texts(chat, outcome)
    assert NEEDLE.encode() not in found
    assert USER.encode() not in found
    [episode] = opened(chat, outcome.outgoing)
    first = episode.messages[0]
    assert (first.content, first.user_id, first.tools, first.flows, first.sentiment) == (
        f"I am {NEEDLE}",
        USER,
        (NEEDLE,),
        (NEEDLE,),
        0.5,
    )
    assert episode.messages[1].content == f"Fine, {NEEDLE}."
    assert (episode.user_id, episode.metrics.tools_invoked, episode.sealed) == (USER, (NEEDLE,), False)
    assert [one.reason for one in amendments(outcome.outgoing)] == [None, None]


def test_a_dead_letter_names_its_original_and_does_not_hold_it() -> None:
    chat = SealedChat(sealing=sealing())
    [dead] = [one for one in chat.process(LOG).outgoing if one.topic == DEAD_LETTERS]
    letter = read_dead_letter(Sent(dead.key, dead.value, headers=tuple(dead.headers)))
    assert (letter.error_type, letter.value, letter.headers) == ("schema_violation", None, [])
    assert (letter.withheld, letter.truncated, letter.origin) == (True, False, ("messages", 3, 3))


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(talk(max_size=40), st.sampled_from(["conversation", "agent"]), st.integers(1, 7))
def test_sealed_or_not_the_same_messages_are_in_the_same_episodes(
    happening: list[Sent | int], scope: str, trigger: int
) -> None:
    allowed = Episodes.model_validate({"trigger": trigger, "overlap": 2, "scope": scope, "idle_seconds": 60})
    small = [one for one in happening if isinstance(one, int) or len(one.value or b"") < 10_000]
    plain, sealed = Chat(allowed), SealedChat(allowed, sealing=sealing())
    for one in small:
        if isinstance(one, int):
            expected, found = plain.wait(one), []
            sealed.now_ms += one * 1000
            outcome = sealed.tick(sealed.due())
        else:
            expected, outcome = episodes(plain.process([one]).outgoing), sealed.process([one])
        found = opened(sealed, outcome.outgoing)
        same = {"fingerprint": "", "closed_at": NOON}
        assert [event.model_copy(update=same) for event in found] == [
            event.model_copy(update=same) for event in expected
        ]
    assert plain.conversations.keys() == sealed.conversations.keys()
    assert plain.messages.keys() == sealed.messages.keys()


def test_a_replay_and_any_chunking_give_the_same_bytes() -> None:
    store = MemoryUserKeys()
    together, alone = SealedChat(sealing=sealing(store)), SealedChat(sealing=sealing(store))
    outcome = together.process(LOG)
    assert [one for record in LOG for one in alone.process([record]).outgoing] == outcome.outgoing
    assert (alone.messages, alone.conversations) == (together.messages, together.conversations)


def test_a_record_whose_key_is_missing_changes_nothing() -> None:
    chat = Chat(sealing=sealing())
    outcome = chat.process(says("a", "b"))
    assert outcome.needed
    assert outcome.needed.owners == {KeyOwner(None, "ann")}
    assert (outcome.done, outcome.begun, outcome.outgoing, chat.messages, chat.conversations) == (0, [], [], {}, {})


def test_users_of_the_records_ahead_are_known() -> None:
    records = [say("a", user_id="u1"), say("b", user_id="u2", tenant_id="t"), Sent(b"c", b"{"), flush()]
    assert owners_of(records) == {KeyOwner(None, "u1"), KeyOwner("t", "u2")}


def test_what_was_pending_before_leaves_sealed_when_it_is_turned_on() -> None:
    chat = SealedChat()
    chat.process([say("a", NEEDLE)])
    chat.sealing = sealing()
    outcome = chat.process([say("b"), flush()])
    assert NEEDLE.encode() not in repr(outcome.outgoing).encode()
    assert [m.content for m in opened(chat, outcome.outgoing)[0].messages] == [NEEDLE, "x"]


def test_what_was_sealed_leaves_readable_when_it_is_turned_off_and_needs_the_key() -> None:
    store = MemoryUserKeys()
    chat = SealedChat(sealing=sealing(store))
    chat.process([say("a", NEEDLE)])
    chat.sealing = None
    with pytest.raises(SealedWithoutKey, match="AFTERWORD_CRYPTO__KEY"):
        chat.process([flush()])
    chat.sealing = sealing(store, "off")
    [episode] = episodes(chat.process([say("b"), flush()]).outgoing)
    assert (episode.sealed, [m.content for m in episode.messages]) == (False, [NEEDLE, "x"])


def test_a_message_whose_key_was_destroyed_is_empty_and_stops_nobody() -> None:
    store = MemoryUserKeys()
    before = SealedChat(sealing=sealing(store))
    before.process([say("a", NEEDLE), say("b", "stays", user_id="bob")])
    RUNNER.run(store.destroy(RUNNER.run(store.retire(digest_of_owner(KeyOwner(None, "ann"))))))
    after = SealedChat(conversations=before.conversations, messages=before.messages, offset=2, sealing=sealing(store))
    outcome = after.process([edit("b", content="changed"), flush()])
    keys = after.sealing
    assert keys
    found = RUNNER.run(keys.waited(lambda: keys.opened(episodes(outcome.outgoing)[0])))
    assert found.unreadable == {"a"}
    assert [m.content for m in found.messages] == ["", "changed"]


def test_edits_that_make_an_episode_too_large_shorten_what_is_sealed() -> None:
    chat = SealedChat(sealing=sealing())
    chat.process(says("a", "b", "c"))
    chat.process([edit(one, content=one * 300_000) for one in "abc"])
    outcome = chat.process([flush()])
    assert all(len(one.value or b"") <= 1_000_000 for one in outcome.outgoing)
    found = opened(chat, outcome.outgoing)
    assert " ".join(map(ids, found)) == "a b c"
    assert all(len(m.content) > 30_000 for episode in found for m in episode.messages)


def test_a_sealed_message_that_was_changed_puts_its_conversation_in_quarantine() -> None:
    chat = SealedChat(sealing=sealing())
    chat.process(says("a", "b"))
    key = next(key for key, row in chat.messages.items() if b'"a"' in row)
    row = chat.messages[key]
    at = row.index(b'"content":"') + 60
    chat.messages[key] = row[:at] + (b"A" if row[at : at + 1] != b"A" else b"B") + row[at + 1 :]
    [dead] = [one for one in chat.process([edit("a", content="new")]).outgoing if one.topic == DEAD_LETTERS]
    letter = read_dead_letter(Sent(dead.key, dead.value, headers=tuple(dead.headers)))
    assert letter.error_type == "state_unreadable"
    assert letter.problem.endswith("a sealed message was changed")


def test_no_word_of_a_sealed_message_is_kept_for_the_topic_model():
    said = [say(f"m{n}", "what is it about the passport of my sister?", at=n) for n in range(4)]
    sealed = SealedChat(limits(topic_shift="auto"), sealing=sealing())
    sealed.process(said)
    sealed.process([delete("m0")])  # it has the model hear what it has not heard yet
    assert decode_state(sealed.conversations[b"c"]).topic == b""
    readable = Chat(limits(topic_shift="auto"))
    readable.process([*said, delete("m0")])
    assert TopicListener(decode_state(readable.conversations[b"c"]).topic).content
