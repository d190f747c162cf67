"""Random talk: messages, repeats, flushes, invalid records, silence, agents and overrides."""

from typing import Any

from hypothesis import strategies as st

from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import Sent, assign, delete, delete_conversation, edit, flush, say

IDLE = 60
FORGET = 300
"""Seconds of silence after which a conversation is forgotten."""
GAPS = st.sampled_from([0, 0, 0, 1, 1, IDLE, IDLE + 1, -5])
"""Seconds between messages; also exactly the idle time, and backwards."""

CONTENTS = st.one_of(
    st.text(max_size=12),
    st.integers(0, 12).map("y".__mul__),
    st.sampled_from(["Do you like the sea?", "I want to know what this is about", "yes, it is", "how are you?"]),
    st.sampled_from([40_000, 60_000, 200_000, 400_000]).map("z".__mul__),
)

RUBBISH = st.one_of(
    st.builds(Sent, st.one_of(st.none(), st.binary(max_size=8)), st.one_of(st.none(), st.binary(max_size=40))),
    st.builds(lambda m: Sent(b"another", m.value), st.builds(say, st.just("m1"))),
)


AGENTS = st.sampled_from([None, None, None, "", "x", "x", "y", "z"])

TENANTS = st.sampled_from([None] * 19 + ["evil"])

NUMBERS: dict[str, st.SearchStrategy[float]] = {
    "messages": st.integers(1, 12),
    "events": st.integers(1, 12),
    "turns": st.integers(1, 5),
    "tokens": st.sampled_from([1, 10, 40, 10**9]),
    "text_bytes": st.sampled_from([1, 12, 50, 10**9]),
    "seconds": st.sampled_from([0.5, 1, 3, IDLE, 2 * IDLE]),
    "important_content": st.sampled_from([0, 3, 11]),
}
"""The numbers of each condition."""


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(some.map(lambda nodes: {"any": nodes}), some.map(lambda nodes: {"all": nodes}))


CONDITIONS = st.one_of([st.fixed_dictionaries({name: numbers}) for name, numbers in NUMBERS.items()])
NODES = st.recursive(CONDITIONS, nested, max_leaves=5)
TRIGGERS = st.one_of(
    st.integers(1, 12),
    NODES,
    st.lists(NODES, min_size=1, max_size=3),
    st.sampled_from(["default", "high_frequency", "memory_sensitive"]),
)

OVERRIDES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"trigger": TRIGGERS}),
    st.fixed_dictionaries({"auto_summarize": st.booleans()}),
    st.fixed_dictionaries({"min_episode_size": st.integers(1, 7)}),
    st.fixed_dictionaries({"max_episode_size": st.integers(1, 7), "idle_seconds": st.sampled_from([1, 2 * IDLE])}),
    st.sampled_from(["x", 0, [1], {"scope": "agent"}, {"trigger": []}, {"trigger": {"secs": 1}}, {"overlap": 1}]),
)


pending_limits = st.sampled_from([1, 5, 9, 1000])


@st.composite
def episode_limits(draw: st.DrawFn, scopes: tuple[str, ...] = ("conversation", "agent")) -> Episodes:
    shortest = draw(st.integers(1, 4))
    longest = draw(st.integers(shortest, 7))
    return Episodes(
        trigger=draw(TRIGGERS),
        trigger_tokens=draw(st.sampled_from([1, 10, 40, 10**9])),
        min_episode_size=shortest,
        max_episode_size=longest,
        max_episode_tokens=draw(st.sampled_from([5, 20, 10**9])),
        overlap=draw(st.integers(0, longest)),
        idle_seconds=IDLE,
        forget_after_days=draw(st.sampled_from([0, FORGET / 86400, FORGET / 86400, 30])),
        topic_shift=draw(st.sampled_from(["flags", "flags", "off"])),
        on_changed_repeat=draw(st.sampled_from(["edit", "edit", "reject"])),
        dedupe_window=draw(st.sampled_from([1, 3, 8, 1000])),
        auto_summarize=draw(st.sampled_from([True] * 9 + [False])),
        scope=draw(st.sampled_from(scopes)),
        max_agents=draw(st.sampled_from([1, 2, 3])),
    )


METADATA = st.one_of(
    *[st.just({})] * 7, st.just({"afterword": None}), OVERRIDES.map(lambda given: {"afterword": given})
)


IDS = st.integers(0, 40).map("m{}".format)
TALKS = st.sampled_from("aab")
EDITS = st.one_of(
    st.fixed_dictionaries({"content": CONTENTS}),
    st.fixed_dictionaries({"flows": st.lists(st.sampled_from("fg"))}),
    st.fixed_dictionaries({"sentiment": st.sampled_from([None, 0.5]), "metadata": METADATA}),
    st.fixed_dictionaries({"skip_summarization": st.booleans()}),
)
AMENDMENTS = st.one_of(
    st.builds(lambda i, c, t, fields: edit(i, conversation_id=c, tenant_id=t, **fields), IDS, TALKS, TENANTS, EDITS),
    st.builds(lambda i, c, t: delete(i, conversation_id=c, tenant_id=t), IDS, TALKS, TENANTS),
    st.builds(lambda c, t: delete_conversation(c, tenant_id=t), TALKS, TENANTS),
    st.builds(lambda c, t: assign(conversation_id=c, tenant_id=t), TALKS, TENANTS),
)


@st.composite
def talk(draw: st.DrawFn, max_size: int = 60) -> list[Sent | int]:
    """Draw records in order. A number lets that many seconds of wall time pass without a record."""
    happening: list[Sent | int] = []
    sent = stamped = 0
    for _ in range(draw(st.integers(0, max_size))):
        kind = draw(st.sampled_from(["message"] * 12 + ["flush", "rubbish", "wait", "amend", "amend"]))
        if kind == "message":
            sent, stamped = sent + draw(GAPS), stamped + draw(GAPS)
            happening.append(draw(messages(sent, stamped)))
        elif kind == "flush":
            happening.append(flush(draw(st.sampled_from("ab")), agent_id=draw(AGENTS), tenant_id=draw(TENANTS)))
        elif kind == "rubbish":
            happening.append(draw(RUBBISH))
        elif kind == "amend":
            happening.append(draw(AMENDMENTS))
        else:
            happening.append(draw(st.sampled_from([1, IDLE // 2, IDLE, FORGET, FORGET])))
    return happening


@st.composite
def messages(draw: st.DrawFn, sent: int, stamped: int) -> Sent:
    return say(
        f"m{draw(st.integers(0, 40))}",
        draw(CONTENTS),
        at=sent,
        stamped=stamped,
        conversation_id=draw(st.sampled_from("aab")),
        role=draw(st.sampled_from(["user", "user", "user", "assistant", "system", "tool"])),
        is_continuation=draw(st.sampled_from([None, None, True, False])),
        skip_summarization=draw(st.sampled_from([False] * 9 + [True])),
        tenant_id=draw(TENANTS),
        agent_id=draw(AGENTS),
        metadata=draw(METADATA),
    )
