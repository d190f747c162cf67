"""ChatGPT's export → messages of the current branch."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.writing.importing.formats import ImportOptions, ImportOutcome, LeftOut, Rejected
from tests.rows import with_rows
from tests.unit.afterword.writing.importing.histories import all_accounted, json_values, messages_of, read_all, reasons

ANN = ImportOptions("ann")


def said(role: str, *parts: Any, **changes: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": list(parts)}
    return {"id": None, "author": {"role": role}, "create_time": None, "content": content, "recipient": "all"} | changes


def chain(*messages: dict[str, Any] | None, **changes: Any) -> dict[str, Any]:
    """A conversation without branches: nodes n0, n1 …"""
    nodes = {
        f"n{n}": {"id": f"n{n}", "parent": f"n{n - 1}" if n else None, "children": [], "message": one}
        for n, one in enumerate(messages)
    }
    last = f"n{len(messages) - 1}" if messages else None
    return {"id": "c", "create_time": 1_700_000_000.5, "mapping": nodes, "current_node": last} | changes


def read(*conversations: Any, options: ImportOptions = ANN) -> list[ImportOutcome]:
    return read_all("chatgpt", {"conversations.json": list(conversations)}, options)


def test_conversation_is_read_from_root_to_current_message():
    conversation = chain(
        None,
        said("user", "Which lake is deepest?", id="m1", create_time=1_700_000_001.25),
        said("assistant", "Baikal.", id="m2", create_time=1_700_000_004),
    )
    one, two = messages_of(read(conversation))
    assert (one.id, one.role, one.content, one.user_id) == ("m1", "user", "Which lake is deepest?", "ann")
    assert one.sent_at == datetime(2023, 11, 14, 22, 13, 21, 250_000, UTC)
    assert (two.id, two.role, two.content, two.user_id) == ("m2", "assistant", "Baikal.", "ann")
    assert one.conversation_id == two.conversation_id == "c"


def test_regenerated_answers_are_omitted():
    conversation = chain(None, said("user", "Name a lake."), said("assistant", "Como."))
    conversation["mapping"]["other"] = {"id": "other", "parent": "n1", "message": said("assistant", "Garda.")}
    assert [m.content for m in messages_of(read(conversation))] == ["Name a lake.", "Como."]
    assert reasons(read(conversation)) == ["on another branch (regenerated answers and replaced messages)"]
    conversation["current_node"] = "other"
    assert [m.content for m in messages_of(read(conversation))] == ["Name a lake.", "Garda."]


def test_options_set_tenant_and_prefix_and_public_ids_win():
    conversation = chain(said("user", "a"), conversation_id="public")
    [message] = messages_of(read(conversation, options=ImportOptions("ann", "acme", "old-")))
    assert (message.conversation_id, message.tenant_id) == ("old-public", "acme")


def test_message_without_id_or_time_takes_its_neighbours():
    one, two, three = messages_of(
        read(chain(said("user", "a"), said("assistant", "b", create_time=1_700_000_009), said("user", "c")))
    )
    assert [m.id for m in (one, two, three)] == ["n0", "n1", "n2"]
    assert one.sent_at == datetime(2023, 11, 14, 22, 13, 20, 500_000, UTC)
    assert two.sent_at == three.sent_at == datetime(2023, 11, 14, 22, 13, 29, tzinfo=UTC)


def test_media_leave_placeholders_and_transcripts_their_text():
    parts = [
        {"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_1"},
        {"content_type": "audio_transcription", "text": "And this one?"},
        {"content_type": "of the future", "asset": 7},
        "What is it?",
    ]
    content = {"content_type": "multimodal_text", "parts": parts}
    [message] = messages_of(read(chain(said("user", content=content))))
    assert message.content == "[image]\nAnd this one?\n[attachment]\nWhat is it?"


def test_uploaded_files_leave_their_names_once():
    files = [{"name": "plan.pdf", "mime_type": "application/pdf"}, {"name": "map.png", "mime_type": "image/png"}]
    parts = [{"content_type": "image_asset_pointer", "asset_pointer": "sediment://file_1"}, "What is it?"]
    picture = {"content_type": "multimodal_text", "parts": parts}
    given = {"metadata": {"attachments": files}}
    found = [m.content for m in messages_of(read(chain(said("user", content=picture, **given), said("user", **given))))]
    assert found == ["[image]\nWhat is it?\n[file: plan.pdf]", "[file: plan.pdf]"]


def test_called_tool_is_named_and_its_output_kept():
    code = {"content_type": "code", "language": "python", "text": "print(6 * 7)"}
    output = {"content_type": "execution_output", "text": "42"}
    call, result = messages_of(
        read(chain(said("assistant", content=code, recipient="python"), said("tool", content=output)))
    )
    assert (call.content, call.tools) == ("", ("python",))
    assert (result.role, result.content, result.tools) == ("tool", "42", ())


def test_tool_result_within_an_answer_belongs_to_the_tool():
    parts = [{"type": "tool_use", "name": "weather"}, {"type": "tool_result", "content": "Snow."}, "It snows."]
    found = messages_of(read(chain(said("assistant", *parts, id="m1"))))
    assert [(m.id, m.role, m.content, m.tools) for m in found] == [
        ("m1", "assistant", "", ("weather",)),
        ("m1.2", "tool", "Snow.", ()),
        ("m1.3", "assistant", "It snows.", ()),
    ]


@pytest.mark.parametrize(
    "empty",
    [
        said("user", ""),
        said("user", " \n"),
        said("user", content=None),
        said("assistant", content={"content_type": "thoughts", "thoughts": []}),
    ],
)
def test_message_without_text_is_omitted(empty):
    outcomes = read(chain(empty, said("user", "kept")))
    assert reasons(outcomes) == ["empty"]
    assert [m.content for m in messages_of(outcomes)] == ["kept"]


@pytest.mark.parametrize(
    ("unsaid", "role", "content"),
    [
        (
            said("user", "Call me Ann.", metadata={"is_visually_hidden_from_conversation": True}),
            "system",
            "Call me Ann.",
        ),
        (
            said(
                "assistant", content={"content_type": "thoughts", "thoughts": [{"summary": "Lakes", "content": "Hm."}]}
            ),
            "assistant",
            "Lakes\nHm.",
        ),
        (said("tool", content={"content_type": "sonic_webpage", "title": "Lakes", "text": "Como"}), "tool", "Como"),
        (said("system", "Be brief."), "system", "Be brief."),
    ],
)
def test_unspoken_content_is_archived_but_not_summarized(unsaid, role, content):
    one, two = messages_of(read(chain(unsaid, said("user", "Hi"))))
    assert (one.role, one.content, one.skip_summarization) == (role, content, True)
    assert not two.skip_summarization


@with_rows
def test_citations_and_links_appear_as_people_see_them(written, shown):
    assert [m.content for m in messages_of(read(chain(said("assistant", written))))] == [shown]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (chain(said("user", "secret"), mapping=7), "not a conversation: it has no id or no messages"),
        (chain(said("user", "secret"), id=[7]), "not a conversation: it has no id or no messages"),
        (["secret"], "not a conversation: it has no id or no messages"),
        (chain(said("user", "secret"), create_time="soon"), "its time is neither seconds or milliseconds since 1970"),
        (chain(said("boss", "secret")), "message 1: it has no known role"),
        (chain(said("user", "secret", create_time=1e300)), "message 1: its time is neither seconds or"),
        (chain(said("user", "secret" * 200_000)), "message 1: too_large: 1200"),
        (chain(said("user", "secret", id="x" * 257)), "message 1: schema_violation: id"),
        (chain(said("user", "secret"), id="x" * 257), "message 1: schema_violation: conversation_id"),
    ],
)
def test_bad_chatgpt_record_is_named_and_others_are_read(bad, reason):
    outcomes = read(chain(said("user", "before")), bad, chain(said("user", "after")))
    assert [m.content for m in messages_of(outcomes)] == ["before", "after"]
    [rejected] = [o for o in outcomes if isinstance(o, Rejected)]
    assert str(rejected).startswith(f"conversations.json:2: {reason}")
    assert "secret" not in str(rejected)


@pytest.mark.parametrize("current", [None, "gone", 7])
def test_conversation_without_current_message_ends_at_its_newest_leaf(current):
    conversation = chain(None, said("user", "Name a lake.", create_time=1_700_000_001), current_node=current)
    for name, time in (("late", 1_700_000_009), ("early", 1_700_000_003)):
        conversation["mapping"][name] = {"parent": "n1", "message": said("assistant", name, create_time=time)}
    assert [m.content for m in messages_of(read(conversation))] == ["Name a lake.", "late"]


@pytest.mark.parametrize(
    "flag",
    [{"is_do_not_remember": True}, {"is_temporary_chat": True}]
    + [{"memory_scope": scope} for scope in ("disabled", "project_disabled")],
)
def test_conversation_excluded_from_memory_is_left_out(flag):
    private = chain(said("user", "My hint is the pier."), said("assistant", "Right."), **flag)
    assert [(o.reason.split(" (")[0], o.number) for o in read(private) if isinstance(o, LeftOut)] == [
        ("of conversations that their owner excluded from memory", 2)
    ]
    assert messages_of(read(private)) == []
    everything = read(private, options=ImportOptions("ann", with_excluded=True))
    assert [m.content for m in messages_of(everything)] == ["My hint is the pier.", "Right."]


def test_conversation_not_excluded_from_memory_is_read():
    public = chain(said("user", "Hi"), is_do_not_remember=False, is_temporary_chat=None, memory_scope="global_enabled")
    assert [m.content for m in messages_of(read(public))] == ["Hi"]


def test_recording_leaves_no_placeholder_beside_its_transcript():
    recording = {"content_type": "real_time_user_audio_video_asset_pointer", "audio_asset_pointer": {"duration": 2}}
    spoken = {"content_type": "audio_transcription", "text": "Turn left.", "direction": "in"}
    parts = {"content_type": "multimodal_text", "parts": [spoken, recording]}
    alone = {"content_type": "multimodal_text", "parts": [{"content_type": "audio_asset_pointer", "size": 7}]}
    found = messages_of(read(chain(said("user", content=parts), said("user", content=alone))))
    assert [m.content for m in found] == ["Turn left.", "[audio]"]


def test_messages_before_a_missing_parent_are_named():
    conversation = chain(said("user", "My blood type is AB negative."), said("user", "gone"), said("user", "Noted?"))
    del conversation["mapping"]["n1"]
    assert [m.content for m in messages_of(read(conversation))] == ["Noted?"]
    assert reasons(read(conversation))[0].startswith("conversations.json:1: no chain of parents connects these")


@pytest.mark.parametrize("parent", ["gone", None, ["n0"], "stray"])
def test_messages_unconnected_to_the_branch_are_rejected(parent):
    conversation = chain(None, said("user", "Name a lake."), said("assistant", "Como."))
    regenerated = {"parent": "n1", "message": said("assistant", "Garda.")}
    stray = {"parent": parent, "message": said("user", "My blood type is AB negative.")}
    after = {"parent": "stray", "message": said("assistant", "Noted.")}
    conversation["mapping"] |= {"after": after, "stray": stray, "other": regenerated}
    outcomes = read(conversation)
    assert [m.content for m in messages_of(outcomes)] == ["Name a lake.", "Como."]
    assert [o.number for o in outcomes if isinstance(o, LeftOut)] == [1]
    assert [o.messages for o in outcomes if isinstance(o, Rejected)] == [2]


def test_rejected_messages_are_named_by_their_place():
    answer = said("assistant", {"type": "tool_result", "content": "Snow."}, "It snows.")
    outcomes = read(chain(None, said("user", json.loads("[" * 99 + "]" * 99)), answer, said("boss", "secret")))
    assert [reason.split(": ")[1] for reason in reasons(outcomes)] == ["message 1", "message 3"]


def test_conversations_of_another_person_are_rejected():
    outcomes = read(chain(said("user", "a"), user_email="a@x"), chain(said("user", "secret"), id="2", user_email="b@x"))
    assert [m.content for m in messages_of(outcomes)] == ["a"]
    assert "another person" in reasons(outcomes)[0]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from(["id", "author", "content", "create_time", "recipient", "metadata"]),
            json_values
            | st.fixed_dictionaries({"role": json_values | st.just("user")})
            | st.fixed_dictionaries({"content_type": json_values, "parts": json_values, "text": json_values}),
        ),
        max_size=4,
    )
)
def test_any_message_is_imported_omitted_or_rejected(messages):
    outcomes = read(chain(*messages))
    assert len(outcomes) >= len(messages)
    assert all_accounted(outcomes)


@given(st.dictionaries(st.sampled_from(["id", "mapping", "current_node", "create_time"]), json_values) | json_values)
def test_any_conversation_is_imported_omitted_or_rejected(conversation):
    assert all_accounted(read(conversation))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.data())
def test_branch_of_any_tree_leads_from_its_root(parents, data):
    nodes = {
        f"n{n}": {"parent": f"n{parent % n}" if n else None, "message": said("user", f"text {n}")}
        for n, parent in enumerate(parents)
    }
    last = data.draw(st.sampled_from(sorted(nodes)))
    way, node = [], last
    while node:
        way.insert(0, node)
        node = nodes[node]["parent"]
    assert [m.id for m in messages_of(read(chain(mapping=nodes, current_node=last)))] == way
