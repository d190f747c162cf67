"""Topic shifts found in the text: what the model sees, and the effect of its decisions."""

import time
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword.schemas import EpisodeClosed
from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.shifts import BEGUN, TopicListener, utterance_of
from afterword.streams.segmenter.state import State, decode_state
from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import Chat, Sent, delete, delete_conversation, edit, episodes, flush, say
from tests.unit.segmenter.oracle import told

TALK = [
    ("user", "Do you like to travel?"),
    ("assistant", "yes, i do. i was in italy last summer with my family."),
    ("user", "wow, that is great! my family likes italy too."),
    ("assistant", "the food was really good there."),
    ("user", "How do I apply for disability benefits?"),
    ("assistant", "You can apply for them online or by phone."),
    ("user", "ok, thank you."),
    ("assistant", "You are welcome."),
]
SHIFT = 4
"""The one message of TALK that begins another topic."""
ROW = "040000ab001400090067000033b5407899cea9a0e5e240784e7d99ce29f7"
SCORE = 1138

OTHERS = {
    "de": ["Ich möchte meinen Pass verlängern.", "Gern, wann läuft er ab?", "Im Mai.", "Dann geht das online.",
           "Übrigens, was kostet ein Visum?", "Das kostet 80 Euro.", "Danke!", "Noch etwas?", "Wie ist das Wetter?"],
    "fr": ["Bonjour, je veux renouveler mon passeport.", "Quand expire-t-il ?", "En mai.", "C'est possible en ligne.",
           "Au fait, combien coûte un visa ?", "80 euros.", "Merci !", "Autre chose ?", "Quel temps fait-il ?"],
    "es": ["Quiero renovar mi pasaporte.", "¿Cuándo caduca?", "En mayo.", "Se puede hacer por internet.",
           "Por cierto, ¿cuánto cuesta una visa?", "80 euros.", "Gracias.", "¿Algo más?", "¿Qué tiempo hace?"],
    "zh": ["我想续签护照。", "什么时候到期?", "五月。", "可以在网上办理。",
           "对了,签证多少钱?", "80欧元。", "谢谢!", "今天天气怎么样?"],
    "ja": ["パスポートを更新したいです。", "いつ切れますか?", "五月です。", "オンラインでできます。",
           "ところで、ビザはいくらですか?", "80ユーロです。", "ありがとう。", "今日の天気は?"],
}  # fmt: skip


def limits(mode: str = "auto", **changed) -> Episodes:
    return Episodes(topic_shift=mode, trigger=1000, min_episode_size=2, **changed)


def records(talk=TALK, **fields) -> list[Sent]:
    return [say(f"m{n}", text, at=n, role=role, **fields) for n, (role, text) in enumerate(talk)]


def closed(chat: Chat, sent: list[Sent]) -> list[EpisodeClosed]:
    return episodes(chat.process([*sent, flush()]).outgoing)


def sizes(mode: str, sent: list[Sent]) -> list[int]:
    return [len(episode.messages) for episode in closed(Chat(limits(mode)), sent)]


def test_an_episode_ends_where_the_text_begins_another_topic():
    first, second = closed(Chat(limits()), records())
    assert [m.id for m in first.messages] == ["m0", "m1", "m2", "m3"]
    assert (first.close_reason, second.close_reason) == ("topic_shift", "flush")


def test_flags_alone_or_nothing_ends_an_episode_where_that_is_set():
    assert sizes("flags", records()) == [8]
    flagged = [*records()[:3], say("x", "so", at=3, is_continuation=False), *records()[3:]]
    assert sizes("flags", flagged) == [3, 6]
    assert sizes("off", flagged) == [9]


def test_a_flag_counts_more_than_the_text():
    assert sizes("auto", records(is_continuation=True)) == [8]
    sent = records(is_continuation=True)
    sent[3] = say("m3", TALK[3][1], at=3, role="assistant", is_continuation=False)
    first, _ = closed(Chat(limits()), sent)
    assert len(first.messages) == 3


def test_what_comes_later_changes_no_boundary():
    whole = sizes("auto", records())
    for end in range(1, len(TALK)):
        assert sizes("auto", records()[:end]) == ([end] if end <= SHIFT else [whole[0], end - whole[0]])


@pytest.mark.parametrize("cut", range(len(TALK)))
def test_a_restart_anywhere_changes_nothing(cut):
    without = Chat(limits())
    expected = closed(without, records())
    before = Chat(limits())
    before.process(records()[:cut])
    after = Chat(limits(), dict(before.conversations), dict(before.messages), before.now_ms, offset=before.offset)
    assert closed(after, records()[cut:]) == expected
    assert after.messages == without.messages


def test_an_edit_or_a_deletion_moves_no_boundary_that_was_decided():
    sent = records()
    changed = [*sent[:6], edit("m4", content="ok"), delete("m3"), *sent[6:]]
    assert [[m.id for m in e.messages] for e in closed(Chat(limits()), changed)] == [
        ["m0", "m1", "m2"],
        ["m4", "m5", "m6", "m7"],
    ]


@pytest.mark.parametrize("language", OTHERS)
def test_another_language_is_cut_as_without_detection(language):
    talk = [("user" if n % 2 == 0 else "assistant", text) for n, text in enumerate(OTHERS[language])]
    assert sizes("auto", records(talk)) == sizes("flags", records(talk)) == [len(talk)]


def after(*said: str) -> TopicListener:
    listener = TopicListener(BEGUN)
    for n, text in enumerate(said):
        listener.take(utterance_of(n % 2 == 0, text), opens=n == 0)
    return listener


def test_an_english_word_or_two_make_no_english_text():
    listener = after("この API を know したいです、ありがとうございます。")
    assert not listener.is_english(utterance_of(False, "what: これは何ですか?"))
    assert after("what is this about?").is_english(utterance_of(False, "it is about your passport"))


def test_the_weights_are_whole_numbers():
    bias, pull, tables = shifts.weights()
    assert {type(weight) for weight in chain([bias, pull], *tables)} == {int}


def test_the_same_is_decided_on_every_machine():
    """Expect the scores and rows of one machine, because others would cut a log elsewhere."""
    listener = after(*(text for _, text in TALK[:SHIFT]))
    assert listener.row.hex() == ROW
    assert listener.score(shifts.weights(), utterance_of(True, TALK[SHIFT][1]), SHIFT) == SCORE


def test_who_speaks_and_what_is_new_count_in_formal_talk_alone():
    def seen(text: str, is_user: bool) -> list[int]:
        listener, now = after(text), utterance_of(is_user, text)
        listener.last = 0
        values = listener.features(now, 3)
        return [values[list(shifts.TABLES).index(name)] >> 2 for name in ("speaker", "new words")]

    assert [seen(FORMAL, who)[0] for who in (False, True)] == [1, 2]
    assert seen(FORMAL, True)[1] == 1
    assert seen("i do like my red car a lot", True) == [0, 0]


FORMAL = "Applications for disability benefits require additional documentation."
SAID = st.lists(st.text(max_size=80) | st.sampled_from([FORMAL, *(text for _, text in TALK)]), min_size=1, max_size=30)


@given(SAID)
def test_a_row_is_small_and_read_as_it_was_written(said):
    row = after(*said).row
    assert len(row) in shifts.ROW_BYTES
    assert max(shifts.ROW_BYTES) <= 200
    assert TopicListener(row).row == row


@given(SAID, st.integers(1, 29), st.text(max_size=80))
def test_a_row_has_all_that_the_model_knows(said, cut, text):
    whole, again = after(*said), TopicListener(after(*said[:cut]).row)
    for n, each in enumerate(said[cut:], len(said[:cut])):
        again.take(utterance_of(n % 2 == 0, each), opens=n == 0)
    now = utterance_of(True, text)
    assert again.row == whole.row
    assert again.score(shifts.weights(), now, 3) == whole.score(shifts.weights(), now, 3)


@given(st.binary(min_size=shifts.HEADER_BYTES, max_size=max(shifts.ROW_BYTES)), st.text(max_size=80))
def test_a_row_with_any_numbers_is_read(row, text):
    if len(row) in shifts.ROW_BYTES:
        listener, now = TopicListener(row), utterance_of(True, text)
        listener.score(shifts.weights(), now, 3)
        assert listener.begins_topic(now, 3) in (True, False)


def test_an_open_episode_keeps_the_rules_that_opened_it():
    sent = records()
    assert [len(e.messages) for e in changed_at(2, "auto", "flags", sent)] == [SHIFT, len(TALK) - SHIFT]
    assert [len(e.messages) for e in changed_at(2, "flags", "auto", sent)] == [len(TALK)]


def test_the_next_episode_has_the_rules_of_today():
    again = [replace(each, value=each.value.replace(b'"m', b'"n')) for each in records()]
    chat = Chat(limits())
    chat.process(records()[:2])
    chat.limits = limits("flags")
    assert [len(e.messages) for e in closed(chat, records()[2:])] == [SHIFT, len(TALK) - SHIFT]
    assert [len(e.messages) for e in closed(chat, again)] == [len(TALK)]


def changed_at(cut: int, before: str, after: str, sent: list[Sent]) -> list[EpisodeClosed]:
    """The episodes where the setting changes between two messages."""
    chat = Chat(limits(before))
    assert episodes(chat.process(sent[:cut]).outgoing) == []
    return closed(replace(chat, limits=limits(after)), sent[cut:])


def test_no_word_is_kept_longer_than_its_message_is_pending():
    chat = Chat(limits())
    chat.process([*records()[:3], flush()])
    assert words_of(chat) == []
    chat.process([*records()[3:5], delete("m4")])
    assert words_of(chat) == [*utterance_of(False, TALK[3][1]).content]
    chat.process([edit("m3", content="nothing of it")])
    assert words_of(chat) == [*utterance_of(False, "nothing of it").content]
    chat.process([delete_conversation()])
    assert state_of(chat).topic == b""


def words_of(chat: Chat) -> list[int]:
    return TopicListener(state_of(chat).topic).content


def state_of(chat: Chat) -> State:
    return decode_state(chat.conversations[b"c"])


@pytest.mark.parametrize("trigger", [2, 3, 5, 7, 1000])
def test_topics_are_those_of_the_oracle(trigger):
    """`test_the_episodes_are_the_oracles` has talk that is less English."""
    sent, rules = [*records(), flush(), *records(TALK[::-1], conversation_id="d")], limits()
    rules = rules.model_copy(update={"trigger": trigger})
    oracle = told(rules, sent)
    found = [(e.close_reason, [m.id for m in e.messages]) for e in episodes(Chat(rules).process(sent).outgoing)]
    assert found == [(reason, [name for name, _ in core]) for _, _, reason, core, _ in oracle.found]


def test_a_topic_that_is_found_leaves_the_counters_that_a_flag_leaves():
    found, flagged = Chat(limits(max_episode_size=6)), Chat(limits("flags", max_episode_size=6))
    found.process(records()[:6])
    flags = [records(is_continuation=None), records(is_continuation=False)]
    flagged.process([flags[at == SHIFT][at] for at in range(6)])
    assert (state_of(found).pending, state_of(found).open) == (state_of(flagged).pending, state_of(flagged).open)
    assert state_of(found).open_messages == 2


def test_a_topic_makes_room_for_a_message_that_is_too_much_for_the_one_before():
    most = sum(len(text) for _, text in TALK[: SHIFT + 2]) - 1
    chat = Chat(limits(max_episode_tokens=most))
    assert [(len(e.messages), e.close_reason) for e in closed(chat, records())] == [
        (SHIFT, "topic_shift"),
        (len(TALK) - SHIFT, "flush"),
    ]


def test_what_was_said_before_a_conversation_has_rules_of_its_own_is_judged_without_them():
    sent = [*records()[:6], *records(metadata={"afterword": {"min_episode_size": 7}})[6:]]
    assert [len(e.messages) for e in closed(Chat(limits()), sent)] == [SHIFT, len(TALK) - SHIFT]


def test_what_is_past_the_limit_is_not_read():
    begun = "so " * (shifts.MAX_CHARACTERS // 3)
    assert utterance_of(True, begun + "by the way, what is this?") == utterance_of(True, begun)


@pytest.mark.parametrize("text", ["a" * 600_000, "what is " * 80_000, "'" * 600_000, "ß?" * 300_000, " " * 600_000])
def test_no_text_takes_longer_than_its_length_allows(text):
    begun = time.process_time()
    after(text).take(utterance_of(True, text), opens=False)
    assert time.process_time() - begun < 3
