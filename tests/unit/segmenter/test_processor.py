"""Records in, records out, whatever they contain."""

import dataclasses
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from afterword.schemas import EpisodeClosed
from afterword.schemas.dead_letters import DEAD_LETTER_PREFIX, read_dead_letter
from afterword.streams.kafka.fetching import GuardedRecords
from afterword.streams.segmenter.processor import Outcome, Segmenter
from afterword.streams.settings import Episodes, Redaction
from afterword_text.tokens import count_tokens
from tests.e2e.deployment import Record
from tests.e2e.faults import hostile_records as hostile
from tests.e2e.faults.hostile_records import ACCEPTED, Attack, Fates
from tests.unit.segmenter.chat import (
    DEAD_LETTERS,
    EPISODES,
    NOON,
    Chat,
    Sent,
    assign,
    claimed,
    closed_or_amended,
    delete_conversation,
    edit,
    flush,
    limits,
    say,
    says,
)

MEGABYTE = 1_048_576


def error_headers(outgoing):
    found = dict(outgoing.headers)
    return {n.removeprefix(DEAD_LETTER_PREFIX): found[n].decode() for n in found if n.startswith(DEAD_LETTER_PREFIX)}


class TestOutgoing:
    def test_episode_is_a_cloud_event_under_its_conversations_key(self):
        (sent,) = Chat().process([say("a"), flush()]).outgoing
        assert (sent.topic, sent.key) == (EPISODES, b"c")
        assert dict(sent.headers) == {
            "ce_specversion": b"1.0",
            "ce_id": b"c:1:1",
            "ce_type": b"episode.closed",
            "ce_source": b"afterword/segmenter",
            "ce_time": datetime.fromtimestamp(NOON / 1000, UTC).isoformat(timespec="milliseconds")[:-6].encode() + b"Z",
            "content-type": b"application/json",
            "afterword_owner": b'[null,"ann"]',
        }

    def test_records_leave_in_the_order_of_their_causes(self):
        chat = Chat(limits(trigger=1))
        outgoing = chat.process([say("a"), Sent(b"c", b"{"), say("b")]).outgoing
        assert [o.topic for o in outgoing] == [EPISODES, DEAD_LETTERS, EPISODES]

    def test_processed_records_and_episodes_are_counted(self):
        chat = Chat(limits(trigger=3))
        outcome = chat.process(
            [*says("a", "b", "b", "c", "d"), say("e", skip_summarization=True), flush(), Sent(b"c", b"")]
        )
        assert (outcome.messages, outcome.duplicates, outcome.skipped, outcome.flushes) == (4, 1, 1, 1)
        assert outcome.episodes == {"trigger": 1, "flush": 1}
        assert outcome.dead_letters == {"invalid_json": 1}

    def test_empty_batch_does_nothing(self):
        chat = Chat()
        assert chat.process([]).outgoing == []
        assert (chat.conversations, chat.messages) == ({}, {})


class Table(dict):
    """A table that counts its writes."""

    writes = 0

    def __setitem__(self, key, value):
        self.writes += 1
        super().__setitem__(key, value)


class TestTables:
    def test_conversation_is_written_once_per_batch(self):
        chat = Chat(limits(trigger=2), conversations=Table())
        chat.process([say(str(i), conversation_id=c) for i in range(10) for c in "xy"])
        assert chat.conversations.writes == 2

    def test_batch_without_changes_writes_nothing(self):
        chat = Chat(conversations=Table(), messages=Table())
        chat.process(says("a"))
        writes = chat.conversations.writes, chat.messages.writes
        chat.process([say("a"), say("s", skip_summarization=True), flush("unknown")])
        assert (chat.conversations.writes, chat.messages.writes) == writes

    def test_missing_row_gives_a_dead_letter(self):
        chat = Chat()
        chat.process(says("a"))
        chat.messages.clear()
        (letter,) = chat.process([flush()]).outgoing
        assert error_headers(letter)["type"] == "state_unreadable"
        assert "a message's row is missing" in error_headers(letter)["message"]


class TestDeadLetters:
    def test_invalid_record_is_dead_lettered_untouched_with_its_problem(self):
        bad = Sent(b"c", b'{"id": 5}', headers=(("mine", b"1"),))
        (sent,) = Chat(offset=41).process([bad]).outgoing
        assert (sent.topic, sent.key, sent.value) == (DEAD_LETTERS, b"c", b'{"id": 5}')
        assert sent.headers[0] == ("mine", b"1")
        errors = error_headers(sent)
        assert errors["stage"] == "segmenter"
        assert errors["type"] == "schema_violation"
        assert (errors["topic"], errors["partition"], errors["offset"]) == ("messages", "3", "41")

    @pytest.mark.parametrize(
        ("record", "error_type"),
        [
            (Sent(b"c", None), "empty_value"),
            (Sent(b"c", b"hello"), "invalid_json"),
            (Sent(b"c", b"\xff\xfe"), "invalid_json"),
            (Sent(None, say("a").value), "missing_key"),
            (Sent(b"d", say("a").value), "key_mismatch"),
            (Sent(b"c", b'{"type": "message.forgotten"}'), "unknown_type"),
            (say("a", "x" * 700_000), "too_large"),
            (say("a", flows=["f" * 600_000]), "too_large"),
            (say("a", sent_at=None, stamped=10**15), "schema_violation"),
            (say("a", tenant_id="t" * 257), "schema_violation"),
            (Sent(b"c", b'{"metadata":' + b"[" * 1500), "invalid_json"),
        ],
    )
    def test_each_defect_has_its_name(self, record, error_type):
        chat = Chat()
        outcome = chat.process([say("before"), record, say("after")])
        assert outcome.messages == 2
        assert outcome.dead_letters == {error_type: 1}
        assert (outcome.outgoing[0].key, outcome.outgoing[0].value) == (record.key, record.value)

    def test_nesting_that_cannot_be_rewritten_is_dead_lettered(self):
        deep = b'{"type":"message.created","data":{"metadata":' + b"[" * 300 + b"]" * 300 + b"}}"
        record = Sent(b"c", deep, headers=(("content-type", b"application/cloudevents+json"),))
        assert Chat().process([record]).dead_letters == {"schema_violation": 1}

    def test_refused_message_does_not_set_the_tenant(self):
        chat = Chat()
        refused = say("a", tenant_id="evil", flows=["f" * 600_000])
        assert chat.process([refused, say("b", tenant_id="acme")]).messages == 1

    @pytest.mark.parametrize(("ours", "theirs"), [("acme", None), ("acme", "evil"), (None, "evil")])
    def test_other_tenants_flush_closes_nothing_and_is_dead_lettered(self, ours, theirs):
        chat = Chat()
        outcome = chat.process([say("a", tenant_id=ours), flush(tenant_id=theirs)])
        assert (outcome.dead_letters, outcome.flushes, outcome.episodes) == ({"tenant_mismatch": 1}, 0, {})
        assert chat.process([flush(tenant_id=ours)]).episodes == {"flush": 1}

    def test_record_claiming_another_users_conversation_is_dead_lettered(self):
        chat = Chat()
        for record, expected in [
            (claimed(say("m1"), "ann"), {}),
            (claimed(say("m2", user_id="bob"), "bob"), {"user_mismatch": 1}),
            (claimed(say("m3", user_id="bob", skip_summarization=True), "bob"), {"user_mismatch": 1}),
            (claimed(flush(), "bob"), {"user_mismatch": 1}),
            (say("m4", user_id="bob"), {}),
            (claimed(flush(), "ann"), {}),
            (claimed(flush("new"), "bob"), {}),
        ]:
            assert chat.process([record]).dead_letters == expected
        assert chat.process([delete_conversation(), claimed(say("m5", user_id="bob"), "bob")]).dead_letters == {}
        assert chat.process([claimed(say("m6"), "ann")]).dead_letters == {"user_mismatch": 1}

    def test_claim_of_an_assigned_user_is_accepted_until_deletion(self):
        """A message that a guest sent while signing in is one of those that belong to the other user."""
        chat = Chat()
        chat.process([say("m1"), assign("ann", "bob")])
        for user in ("ann", "bob"):
            assert chat.process([claimed(say(f"m-{user}", user_id=user), user)]).dead_letters == {}
        assert chat.process([claimed(say("m2", user_id="eve"), "eve")]).dead_letters == {"user_mismatch": 1}
        chat.process([delete_conversation(), say("m3", user_id="bob")])
        assert chat.process([claimed(say("m4"), "ann")]).dead_letters == {"user_mismatch": 1}

    def test_other_tenants_flush_ends_no_agent(self):
        chat = Chat(limits(scope="agent"))
        outcome = chat.process([say("a", tenant_id="acme", agent_id="x"), flush(agent_id="x"), flush()])
        assert outcome.dead_letters == {"tenant_mismatch": 2}
        assert chat.process([flush(agent_id="x", tenant_id="acme")]).episodes == {"flush": 1}

    def test_one_warning_says_where_and_why_without_content(self):
        with capture_logs() as logs:
            Chat(offset=7).process([Sent(b"secret", b'{"id": "secret", "content": "secret"}')])
        (entry,) = logs
        assert entry["log_level"] == "warning"
        assert (entry["stage"], entry["error_type"], entry["offset"]) == ("segmenter", "schema_violation", 7)
        assert "secret" not in str(entry)


class TestLargestRecords:
    @pytest.mark.parametrize("content", ["x", "\x01", "é́", "𝔘", "ab1!"])
    def test_largest_message_makes_a_record_below_a_megabyte(self, content):
        room = 690_000 // (len(orjson.dumps(content)) - 2)
        chat = Chat(limits(overlap=20), count_tokens=count_tokens)
        small = [say(f"s{i}", "y" * 4_500) for i in range(20)]
        outcome = chat.process([*small, flush(), say("m", content * room), flush()])
        assert outcome.messages == 21
        largest = outcome.outgoing[-1]
        assert 690_000 < len(largest.value) + sum(len(n) + len(v) for n, v in largest.headers) < MEGABYTE - 1000

    def test_repeated_envelope_fields_cannot_enlarge_the_record(self):
        chat = Chat()
        heavy = [say(f"m{i}", user_id="u" * 50_000, flows=[f"{i}" * 100_000], tools=["t" * 50_000]) for i in range(8)]
        outgoing = chat.process([*heavy, flush()]).outgoing
        assert len(outgoing) > 1
        assert all(len(o.value) < MEGABYTE - 1000 for o in outgoing)


ANY_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    ["id", "conversation_id", "user_id", "agent_id", "tenant_id", "role", "content", "sent_at", "is_continuation",
     "sentiment", "flows", "tools", "skip_summarization", "metadata", "type", "data"]
)  # fmt: skip


def almost_a_message(replaced: dict[str, object]) -> bytes:
    return orjson.dumps(orjson.loads(say("a").value) | replaced)


ALMOST = st.dictionaries(FIELDS, ANY_JSON, max_size=3).map(almost_a_message)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["ce_type", "content-type", "x"]),
        st.one_of(
            st.none(),
            st.binary(max_size=4),
            st.sampled_from([b"message.created", b"conversation.flush", b"application/cloudevents+json"]),
        ),
    ),
    max_size=2,
)
GARBAGE = st.builds(
    Sent,
    key=st.one_of(st.none(), st.just(b"c"), st.binary(max_size=4)),
    value=st.one_of(st.none(), st.binary(max_size=30), ANY_JSON.map(orjson.dumps), ALMOST),
    timestamp=st.one_of(st.just(NOON), st.integers(-(2**63), 2**63 - 1)),
    headers=HEADERS.map(tuple),
)


@given(st.lists(GARBAGE, max_size=6))
def test_no_record_stops_the_segmenter_or_disappears(garbage):
    chat = Chat(count_tokens=count_tokens)
    outcome = chat.process(garbage)
    letters = [o for o in outcome.outgoing if o.topic == DEAD_LETTERS]
    taken = outcome.messages + outcome.duplicates + outcome.skipped + outcome.flushes
    assert taken + len(letters) == len(garbage)
    known = {(g.key, g.value) for g in garbage}
    assert {(o.key, o.value) for o in letters} <= known


@pytest.mark.parametrize(
    "refused",
    [
        Sent(b"c", b"\xff no JSON"),
        say("a", tenant_id="one", flows=["f" * 600_000]),
        say("a", tenant_id="another"),
        say("a", tenant_id="one", metadata={"afterword": {"idle_seconds": "soon"}}),
    ],
    ids=["not decoded", "too large for an episode", "of another tenant", "with a wrong rule"],
)
def test_refused_record_and_its_batch_are_freed(refused):
    """An error refers to frames through its traceback. When a frame also referred to the error, 2 GB waited for the
    garbage collector."""
    segmenter = Segmenter(limits(), EPISODES, DEAD_LETTERS, {}, {}, count_tokens)
    segmenter.process([say("first", tenant_id="one")], NOON)
    record = dataclasses.replace(refused)
    gc.collect()
    gc.disable()
    try:
        outcome = segmenter.process([record], NOON)
        assert outcome.dead_letters
        left = weakref.ref(record)
        del record, outcome
        assert left() is None
    finally:
        gc.enable()


NEEDLE = "ann.needle@example.com"
LOG = [
    say("1", f"I am {NEEDLE}", metadata={"mail": NEEDLE}),
    say("2", "Fine.", role="assistant", tools=[NEEDLE]),
    edit("2", content=f"Fine, {NEEDLE}."),
    say("3", "x", role=NEEDLE),
    Sent(b"c", NEEDLE.encode()),
    say("4", f"Also {NEEDLE}"),
    flush(reason=NEEDLE),
    edit("1", content=f"Late: {NEEDLE}"),
    say("5", f"Pending {NEEDLE}"),
]
Rows = dict[bytes, bytes]


def segmented(where: str) -> tuple[Outcome, Rows, Rows]:
    conversations: Rows = {}
    messages: Rows = {}
    redaction = Redaction.model_validate({"where": where}).of_records()
    segmenter = Segmenter(
        Episodes(), EPISODES, DEAD_LETTERS, conversations, messages, count_tokens, redaction=redaction
    )
    return segmenter.process(LOG, NOON), conversations, messages


def everything(where: str) -> bytes:
    outcome, *tables = segmented(where)
    rows = [part for table in tables for row in table.items() for part in row]
    return b"\n".join([*map(repr_of, outcome.outgoing), *rows])


def repr_of(outgoing: object) -> bytes:
    return repr(outgoing).encode()


def test_rows_events_and_dead_letters_are_redacted() -> None:
    assert NEEDLE.encode() in everything("off")
    assert NEEDLE.encode() not in everything("everywhere")


def test_text_around_a_redacted_value_stays() -> None:
    sent = [one for one in segmented("everywhere")[0].outgoing if one.topic == EPISODES]
    assert b"I am [EMAIL]" in (sent[0].value or b"")
    assert b"Fine, [EMAIL]." in (sent[0].value or b"")


def test_author_that_redaction_makes_too_long_is_cut() -> None:
    redaction = Redaction.model_validate({"where": "everywhere"}).of_records()
    segmenter = Segmenter(Episodes(), EPISODES, DEAD_LETTERS, {}, {}, count_tokens, redaction=redaction)
    outcome = segmenter.process([say("1", author="xxx " + "a@b.co " * 36), flush()], NOON)
    [episode] = closed_or_amended(outcome.outgoing)
    assert isinstance(episode, EpisodeClosed)
    assert episode.messages[0].author == "xxx " + "[EMAIL] " * 31


def test_replay_gives_the_same_bytes() -> None:
    assert segmented("everywhere")[0].outgoing == segmented("everywhere")[0].outgoing


@pytest.mark.parametrize("where", ["off", "everywhere"])
def test_redaction_changes_no_number_or_kind_of_dead_letters(where: str) -> None:
    dead = [one for one in segmented(where)[0].outgoing if one.topic == DEAD_LETTERS]
    found = [read_dead_letter(Sent(one.key, one.value, headers=tuple(one.headers))) for one in dead]  # type: ignore[arg-type]  # headers of ours have values
    assert [letter.error_type for letter in found] == ["schema_violation", "invalid_json"]


@pytest.mark.parametrize("said", [None, b"", b"\xff\xfe", NEEDLE.encode() + b"\xff"])
def test_dead_letter_keeps_binary_and_empty_headers(said: bytes | None) -> None:
    """Kafka accepts them; a segmenter that failed on one would fail at every start."""
    redaction = Redaction.model_validate({"where": "everywhere"}).of_records()
    segmenter = Segmenter(Episodes(), EPISODES, DEAD_LETTERS, {}, {}, count_tokens, redaction=redaction)
    headers: Any = (("mail", said),)
    [sent] = segmenter.process([Sent(b"c", b"{}", headers=headers)], NOON).outgoing
    assert dict(sent.headers)["mail"] == (said and said.replace(NEEDLE.encode(), b"[EMAIL]"))


FAMILIES = (
    hostile.strange_bytes,
    hostile.flipped_bits,
    hostile.strange_headers,
    hostile.strange_times,
    hostile.shapes,
    hostile.strange_texts,
    hostile.overrides,
)


def read(attack: Attack) -> Iterator[tuple[Fates, Record]]:
    """Read an attack's records like a worker, which parses each."""
    if attack.batch is None:
        yield attack.fates, Record(attack.key, attack.value, attack.headers, 0, attack.timestamp_ms or hostile.NOW_MS)
        return
    offset, memory = 0, GuardedRecords(attack.batch)
    while memory.has_next():
        batch = memory.next_batch()
        offset = batch.next_offset
        for found in batch:
            fates = attack.fates_in_batch[found.offset]
            yield fates, Record(found.key, found.value, found.headers, found.offset, found.timestamp)
    assert offset == len(attack.fates_in_batch)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=settings().max_examples // 15)
@given(seed=st.integers(0, 2**32))
def test_each_hostile_record_has_its_predicted_outcome(
    family: Callable[[str, random.Random], list[Attack]], seed: int
) -> None:
    segmenter = Segmenter(Episodes(), "episodes", "dead", {}, {}, count_tokens)
    for attack in family("c", random.Random(seed)):
        for fates, record in read(attack):
            outcome = segmenter.process([record], 0)
            fate = next(iter(outcome.dead_letters), ACCEPTED)
            assert fate in fates, f"{fate}, not {fates}"
