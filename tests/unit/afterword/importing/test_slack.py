"""Slack's export → messages: a conversation for each channel and each thread."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.importing.formats import slack
from afterword.importing.formats.slack import without_marks
from afterword.importing.outcomes import HistoryRefused, ImportOptions, ImportOutcome, LeftOut, Rejected
from afterword.schemas import MessageCreated
from tests.unit.afterword.importing.histories import MemoryFiles, messages_of, reasons

USERS = [
    {"id": "U1", "name": "ann", "profile": {"display_name": "Ann", "real_name": "Ann Lee"}},
    {"id": "U2", "name": "bob", "profile": {"display_name": ""}},
]
CHANNELS = [{"id": "C1", "name": "general"}, {"id": "C2", "name": "lakes"}]


NONE = ImportOptions()


def said(ts: str, text: str, **changes: Any) -> dict[str, Any]:
    return {"type": "message", "user": "U1", "ts": ts, "text": text} | changes


def read(*records: Any, options: ImportOptions = NONE, **files: Any) -> list[ImportOutcome]:
    day = {"general/2024-05-01.json": list(records)}
    lists = {"users.json": USERS, "channels.json": CHANNELS, "integration_logs.json": [{"id": "x"}]}
    return list(slack.read(MemoryFiles(lists | day | files), options))


def test_a_message_has_its_author_channel_and_time():
    [message] = messages_of(read(said("1714557600.000200", "Good morning"), options=ImportOptions(None, "acme", "s-")))
    assert (message.id, message.conversation_id, message.tenant_id) == ("1714557600.000200", "s-C1", "acme")
    assert (message.user_id, message.role, message.content) == ("U1", "user", "Good morning")
    assert message.sent_at == datetime(2024, 5, 1, 10, 0, tzinfo=UTC)
    assert message.metadata == {"imported_from": "slack", "channel": "general", "author": "Ann"}


def test_a_thread_is_a_conversation_of_its_own_with_the_message_that_it_answers():
    found = messages_of(
        read(
            said("1714557600.000100", "Which lake?", thread_ts="1714557600.000100", reply_count=1),
            said("1714557601.000100", "Lunch?", user="U2"),
            said("1714557602.000100", "Como", user="U2", thread_ts="1714557600.000100"),
            said("1714557603.000100", "So Como", thread_ts="1714557600.000100", subtype="thread_broadcast"),
        )
    )
    assert [(m.conversation_id, m.content) for m in found] == [
        ("C1-1714557600.000100", "Which lake?"),
        ("C1", "Lunch?"),
        ("C1-1714557600.000100", "Como"),
        ("C1-1714557600.000100", "So Como"),
    ]


def test_days_are_read_in_order_channel_after_channel_below_any_folder():
    files = MemoryFiles(
        {
            "export/users.json": USERS,
            "export/channels.json": CHANNELS,
            "export/dms.json": [{"id": "D1", "members": ["U1", "U2"]}],
            "export/D1/2024-05-01.json": [said("1714557600.000100", "1")],
            "export/lakes/2024-05-02.json": [said("1714644000.000100", "3")],
            "export/lakes/2024-05-01.json": [said("1714557600.000100", "2")],
            "export/unknown/2024-05-01.json": [said("1714557600.000100", "4")],
        }
    )
    found = messages_of(slack.read(files, ImportOptions()))
    assert [(m.conversation_id, m.content) for m in found] == [("D1", "1"), ("C2", "2"), ("C2", "3"), ("unknown", "4")]


def test_bots_are_assistants_and_their_attachments_are_read_where_they_say_nothing():
    one, two = messages_of(
        read(
            said("1.1", "Built", user=None, bot_id="B1", username="ci", subtype="bot_message"),
            said("2.1", "", bot_id="B1", attachments=[{"fallback": "Failed: <https://ci|run 7>"}, {"title": "x"}]),
        )
    )
    assert (one.role, one.user_id, one.metadata["author"]) == ("assistant", "B1", "ci")
    assert (two.role, two.content) == ("assistant", "Failed: run 7 (https://ci)\nx")


def test_an_edited_message_is_as_it_was_last_and_says_when():
    [message] = messages_of(read(said("1714557600.000100", "now", edited={"user": "U1", "ts": "1714557660.000000"})))
    assert (message.content, message.metadata["edited_at"]) == ("now", "2024-05-01T10:01:00.000Z")


def test_files_are_named():
    assert [m.content for m in messages_of(read(said("1.1", "", files=[{"name": "map.png"}, {"id": "F"}])))] == [
        "[file: map.png]"
    ]


@pytest.mark.parametrize(
    "record",
    [
        said("1.1", "<@U1> has joined", subtype="channel_join"),
        said("1.1", "deleted", subtype="tombstone"),
        said("1.1", "", subtype="message_changed", message={}),
        said("1.1", "a", hidden=True),
        said("1.1", "a", subtype=["of", "the", "future"]),
    ],
)
def test_what_nobody_said_is_left_out(record):
    assert reasons(read(record)) == ["not said by anybody"]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (said("soon", "secret"), "its ts, or its thread_ts, is no timestamp of Slack"),
        (said("1.1", "secret", thread_ts=1.1), "its ts, or its thread_ts, is no timestamp of Slack"),
        (said("1.1", "secret", edited={"ts": "x"}), "its ts, or its thread_ts, is no timestamp of Slack"),
        (said("99999999999.1", "secret"), "its ts, or its thread_ts, is no timestamp of Slack"),
        (said("1.1", "secret" * 200_000), "too_large"),
        (["secret"], "not a message"),
    ],
)
def test_what_is_bad_is_named_without_its_content_and_the_rest_is_read(bad, reason):
    outcomes = read(said("1.1", "before"), bad, said("3.1", "after"))
    assert [m.content for m in messages_of(outcomes)] == ["before", "after"]
    [rejected] = [o for o in outcomes if isinstance(o, Rejected)]
    assert (rejected.file, rejected.record) == ("general/2024-05-01.json", 2)
    assert rejected.reason.startswith(reason)
    assert "secret" not in str(rejected)


def test_a_damaged_day_does_not_stop_the_next():
    outcomes = read(said("1.1", "a"), **{"general/2024-05-02.json": b"[{", "lakes/2024-05-01.json": [said("2.1", "b")]})
    assert [m.content for m in messages_of(outcomes)] == ["a", "b"]
    assert len(reasons(outcomes)) == 1


def test_what_is_no_export_is_refused():
    with pytest.raises(HistoryRefused, match="YYYY-MM-DD"):
        list(slack.read(MemoryFiles({"users.json": USERS, "2024-05-01.json": []}), ImportOptions()))


@pytest.mark.parametrize(
    ("marked", "shown"),
    [
        ("<@U1> and <@U9>, <@U2|bo>", "@Ann and @U9, @bo"),
        ("in <#C1|general> or <#C1>", "in #general or #C1"),
        ("<!here> <!subteam^S1|@team>", "@here @team"),
        ("<https://a.b/c?d=1&amp;e=2> <https://a|the page>", "https://a.b/c?d=1&e=2 the page (https://a)"),
        ("1 &lt; 2 &amp;&amp; a < b", "1 < 2 && a < b"),
        ("&amp;lt; &copy; &#38;", "&lt; &copy; &#38;"),
        (f"&#{'1' * 5000};", f"&#{'1' * 5000};"),
        ("<a <b> c>", "<a b c>"),
    ],
)
def test_marks_are_shown_as_people_see_them(marked, shown):
    assert without_marks(marked, {"U1": "Ann"}) == shown


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ["ts", "thread_ts", "text", "user", "subtype", "bot_id", "files", "attachments", "edited", "username"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values), json_values)
def test_anything_is_taken_left_out_or_rejected(changes, other):
    outcomes = read({**said("1.1", "a"), **changes}, other, **{"users.json": [other], "channels.json": other})
    assert len(outcomes) == 2
    assert all(isinstance(outcome, MessageCreated | LeftOut | Rejected) for outcome in outcomes)
