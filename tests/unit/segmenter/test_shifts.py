"""Topic shifts found in the text: what the model may look at, and what becomes of its decisions."""

import time

import orjson
import pytest

from afterword.schemas import EpisodeClosed
from afterword.streams.segmenter import shifts
from afterword.streams.segmenter.shifts import begins_topic, utterance, utterance_of
from afterword.streams.settings import Episodes
from tests.unit.segmenter.chat import Chat, Sent, delete, edit, episodes, flush, say

TALK = [
    ("user", "Do you like to travel?"),
    ("assistant", "yes, i do. i was in italy last summer with my family."),
    ("user", "wow, that is great! what did you like about it?"),
    ("assistant", "the food was really good."),
    ("user", "How do I apply for disability benefits?"),
    ("assistant", "You can apply for them online or by phone."),
    ("user", "ok, thank you."),
    ("assistant", "You are welcome."),
]
SHIFT = 4
"""The one message of TALK that begins another topic."""

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


def test_an_episode_ends_where_the_text_begins_another_topic_and_says_which_model_found_it():
    first, second = closed(Chat(limits()), records())
    assert [m.id for m in first.messages] == ["m0", "m1", "m2", "m3"]
    assert (first.close_reason, first.topic_model) == ("topic_shift", shifts.VERSION)
    assert (second.close_reason, second.topic_model) == ("flush", None)


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
    assert (len(first.messages), first.topic_model) == (3, None)


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


def test_an_english_word_or_two_make_no_english_text():
    said = [
        utterance_of("user", text)
        for text in ("この API を know したいです、ありがとうございます。", "what: これは何ですか?")
    ]
    assert not shifts.is_english(said)


def test_the_weights_are_whole_numbers_and_the_version_fits_its_bits():
    assert all(type(weight) is int for weight in shifts._weights().values())
    assert 1 <= shifts.VERSION <= 15


def test_what_is_past_the_limit_is_not_read():
    begun = "so " * (shifts.MAX_CHARACTERS // 3)
    assert utterance_of("user", begun + "by the way, what is this?") == utterance_of("user", begun)


@pytest.mark.parametrize("text", ["a" * 600_000, "what is " * 80_000, "'" * 600_000, "ß?" * 300_000, " " * 600_000])
def test_no_text_takes_longer_than_its_length_allows(text):
    json = orjson.dumps({"role": "user", "content": text})
    begun = time.process_time()
    begins_topic([utterance(json)] * 4, utterance(json), 4)
    assert time.process_time() - begun < 0.5
