"""Defects for which a summary must not be stored."""

from dataclasses import replace

import pytest

from afterword.streams.summarizer.prompt import JSON_FRAME
from afterword_text.extractive import summarize
from afterword_text.gate import SourceTexts, assess, ends_in_a_sentence, share_of_pairs
from afterword_text.texts import Texts
from tests.unit.summarizer.conversations import an_episode_of, dialogues

LINES = [
    "Hello, I ordered a blue kettle last week and it arrived with a broken lid.",
    "I am sorry to hear that. Could you send me a photo of the damage, please?",
    "Here it is. You can see the crack on the left side, right next to the handle.",
    "Thank you, that is clearly our fault. Would you prefer a refund or a replacement?",
    "A replacement, please, but only when it can be delivered before the weekend.",
    "It would leave our warehouse tomorrow, so it should be with you by Friday morning.",
    "That suits me well. Do I have to send the broken kettle back to you first?",
    "No, keep it or recycle it. We only ask you to confirm when the new one has arrived.",
]
SOURCE = SourceTexts("\n".join(LINES))
GOOD = Texts(
    "Replacement for a broken kettle",
    "The user's new kettle arrived broken. A replacement will be delivered by Friday.",
    "The user reported a kettle whose lid was broken on arrival and sent a photo of the crack. The assistant "
    "accepted the fault and offered a refund or a replacement. The user chose the replacement, which is due by Friday. "
    "The broken kettle need not be sent back.",
)


def but(**texts: str) -> Texts:
    """Return the good summary with other texts, by `title`, `short` or `long`."""
    return replace(GOOD, **{{"short": "short_summary", "long": "long_summary"}.get(n, n): t for n, t in texts.items()})


def reasons(texts: Texts, source: SourceTexts = SOURCE) -> list[str]:
    return [problem.reason for problem in assess(source, texts).problems]


def test_faithful_summary_has_no_problems() -> None:
    assert reasons(GOOD) == []


@pytest.mark.parametrize(
    ("reason", "spoilt"),
    [
        ("empty", but(title="…")),
        ("refused", but(short="I'm sorry, but I cannot summarise this conversation.")),
        ("repetition", but(long=GOOD.long_summary + " The kettle is broken." * 8)),
        ("repetition", but(short="kettle kettle kettle kettle kettle")),
        ("copied", but(long=" ".join(LINES[:6]))),
        (
            "too_long",
            but(long=" ".join(f"The kettle's {w}." for w in (GOOD.long_summary + GOOD.short_summary).split())),
        ),
        (
            "wrong_language",
            but(long="Der Nutzer meldete einen Wasserkocher mit zerbrochenem Deckel und bekommt Ersatz."),
        ),
        (
            "off_topic",
            but(
                short="Two gardeners compared their tomatoes and pumpkins.",
                long="They discussed compost, rainfall and greenhouse heating throughout autumn. Snails ate leaves.",
            ),
        ),
        ("ungrounded", but(short="Karen Whitfield from Boston complained about a kettle.")),
        ("unsupported_figure", but(short="The user's kettle arrived broken; 45 dollars will be refunded.")),
    ],
)
def test_spoilt_summary_has_its_problem_named(reason: str, spoilt: Texts) -> None:
    assert reason in reasons(spoilt)


def test_echoed_instructions_are_found_unless_said_before() -> None:
    sentence = next(line for line in JSON_FRAME.splitlines() if len(line.split()) > 12)
    echo = but(long=f"{GOOD.long_summary} {sentence}")
    assert "echo" in reasons(echo, replace(SOURCE, instructions=JSON_FRAME))
    said_so = replace(SOURCE, episode=f"{SOURCE.episode}\n{sentence}", instructions=JSON_FRAME)
    assert "echo" not in reasons(echo, said_so)


def test_tiny_conversation_may_have_a_longer_summary() -> None:
    texts = Texts("Greeting", "The user greeted.", "The user said hello. So did the assistant. Nothing else came.")
    assert reasons(texts, SourceTexts("hello\nhello there")) == []


def test_few_sentences_are_a_fault_of_long_conversations() -> None:
    brief = but(long="The kettle was broken on arrival and will be replaced by Friday.")
    assert reasons(brief) == []
    assert reasons(brief, replace(SOURCE, episode="\n".join(LINES + [f"{line} Really." for line in LINES] * 2))) == [
        "too_short"
    ]


HALVES = [
    "The kettle was broken on arrival. It will be replaced by",
    "The kettle was broken. The seller said, that the lid,",
    "La bouilloire est cassée. Le vendeur a dit que le",
    "水壶坏了。卖家说会在星期五",
]
WHOLES = [
    "The kettle was broken on arrival. It will be replaced by Friday.",
    'The kettle was broken. The seller said: "On Friday."',
    "The kettle was broken. It comes on Friday 🙂",
    "It was broken by St. Mary",
    "- a broken kettle\n- a new one by Friday",
    "กาต้มน้ำเสีย ผู้ขายจะเปลี่ยนให้วันศุกร์",
    "Yes",
    "",
]


@pytest.mark.parametrize("text", HALVES)
def test_long_summary_that_breaks_off_is_unfinished(text: str) -> None:
    assert ends_in_a_sentence(text)
    assert "unfinished" in reasons(but(long=text))


@pytest.mark.parametrize("text", WHOLES)
def test_complete_long_summary_is_not_called_unfinished(text: str) -> None:
    assert not ends_in_a_sentence(text)


def test_bilingual_conversation_may_be_summarized_in_either_language() -> None:
    german = "Der Wasserkocher kam mit einem kaputten Deckel an, und ich hätte gerne einen neuen."
    source = SourceTexts("\n".join([german, *LINES[1:6]]), by_speaker=(german, "\n".join(LINES[1:6])))
    texts = Texts("Wasserkocher", "Er kam kaputt an.", "Der Wasserkocher kam mit einem kaputten Deckel an.")
    assert "wrong_language" not in reasons(texts, source)


def test_huge_conversation_is_read_up_to_a_bound() -> None:
    source = SourceTexts("\n".join(LINES) * 2000 + " The code is QX-99812.")
    assert "QX-99812" in assess(source, but(short="The code is QX-99812.")).unsupported


def test_source_is_read_once_for_all_its_summaries() -> None:
    source = SourceTexts(episode=SOURCE.episode)
    assess(source, GOOD)
    evidence = source.evidence
    assess(source, but(short="The code is QX-99812."))
    assert source.evidence is evidence


ORDERS = [
    ("user", "Where is my order 4711-22?"),
    ("assistant", "Let me **check**."),
    ("user", "And what about 8830-07?"),
    ("assistant", "Order 8830-07 was *delivered*."),
]


def test_question_with_anothers_answer_is_no_pair() -> None:
    joined = "User: Where is my order 4711-22? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([joined], ORDERS) == 0.0


def test_question_with_its_own_answer_is_a_pair() -> None:
    pair = "User: And what about 8830-07? Assistant: Order 8830-07 was delivered."
    assert share_of_pairs([pair], ORDERS) == 1.0
    assert share_of_pairs([pair, "User: Where is my order 4711-22? Assistant: Yes."], ORDERS) == 0.5


def test_text_without_pairs_is_not_judged() -> None:
    assert (
        share_of_pairs(["They spoke of orders.", "User: Where is it? User: And what about 8830-07?"], ORDERS[:1]) == 0
    )
    assert share_of_pairs(["They spoke of orders."], ORDERS) == 1.0


def test_pairs_of_extractive_summaries_were_pairs() -> None:
    for turns in dialogues():
        summary = summarize(an_episode_of(*turns), "", 800)
        assert share_of_pairs([summary.short_summary, summary.long_summary], turns) == 1.0
