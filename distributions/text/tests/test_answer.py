"""Reading of an LLM's answers."""

import json
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.answer import AnswerUnusable, Limits, StatedFact, is_refusal, read_answer, read_plain
from afterword_text.tokens import count_tokens
from tests.nasty_texts import TOKENS
from tests.rows import with_rows

LIMITS = Limits(800)
GOOD = {
    "title": "A flight to Rome",
    "short_summary": "The user booked a flight to Rome.",
    "long_summary": "The user asked for flights. The assistant named three. The user booked the one at nine.",
    "rolling_summary": "The user plans a holiday and booked a flight to Rome.",
}


def written(**fields: object) -> str:
    return json.dumps({**GOOD, **fields})


@with_rows
def test_json_object_is_found_anywhere_in_the_answer(text: str) -> None:
    assert read_answer(text, LIMITS).__dict__ == {**GOOD, "facts": None}


FACT = {"statement": "lives in {Porto}", "about": "user", "kind": "identity", "attribute": None, "messages": [1]}


def test_facts_are_read_beside_the_texts() -> None:
    assert read_answer(written(facts=[FACT]), LIMITS).facts == (
        StatedFact("lives in {Porto}", "identity", None, "user", (1,)),
    )


@pytest.mark.parametrize("cut", range(1, len(json.dumps([FACT])) + 1))
def test_truncated_facts_spoil_no_text(cut: int) -> None:
    assert read_answer(written(facts=[FACT])[:-cut], LIMITS).__dict__ == {**GOOD, "facts": None}


@pytest.mark.parametrize("facts", [None, "none", {}, {"a": [1]}, [7], [[FACT]], [{"statement": FACT}]])
def test_malformed_facts_spoil_no_text(facts: object) -> None:
    assert read_answer(written(facts=facts), LIMITS).long_summary == GOOD["long_summary"]


def test_object_among_the_facts_is_not_the_answer() -> None:
    with pytest.raises(AnswerUnusable, match='"short_summary" was missing'):
        read_answer(json.dumps({"title": "A flight", "facts": [FACT]}), LIMITS)


@pytest.mark.parametrize(
    "said", ["They asked what </think> does.", 'Ada said "no".', "It has {braces}.", "Two\nlines."]
)
@pytest.mark.parametrize("written", [json.dumps, lambda texts: str(texts), lambda texts: json.dumps(texts)[:-1] + ",}"])
def test_text_content_does_not_end_the_answer(written: Callable[[object], str], said: str) -> None:
    answer = read_answer(written({**GOOD, "short_summary": said}), LIMITS)
    assert answer.short_summary.split() == said.replace("</think>", "/think").split()


MENTIONS = [
    "Odile asked what the <s> tag does.",
    "Odile asked where [INST] begins.",
    "Ada asked about <|im_end|>.",
    "Ada wrote (<eos>) into the file.",
    'Ada asks whether "<think>" ends it.',
    "The <mask> token and the <pad> token differ.",
    "Odile fragte, was das <s>-Zeichen bedeutet.",
    "Il demande à quoi sert <bos>, et pourquoi.",
    "用户询问<think>标签的作用。",
    "They asked what </tool_call> does.",
    "The parser trips over <|im_start|> in logs.",
]


@pytest.mark.parametrize("said", MENTIONS)
def test_control_token_that_a_sentence_mentions_keeps_its_name(said: str) -> None:
    named = re.sub(r"[<\[]\|?(/?\w+)\|?[>\]]", r"\1", said)
    assert read_answer(written(short_summary=said), LIMITS).short_summary == named
    assert read_plain(said, "short_summary", LIMITS) == named


@pytest.mark.parametrize(
    "answer",
    ["Ada moved.</s>", "Ada moved. <|im_end|>", "Ada moved.<|im_end|>\nuser\nhi", "Ada moved. [INST] what else?"],
)
def test_control_token_after_a_sentence_leaves_no_name(answer: str) -> None:
    assert read_plain(answer, "short_summary", LIMITS) == "Ada moved."


def test_unescaped_quotation_marks_belong_to_the_text() -> None:
    text = written().replace("flight to Rome.", 'flight to "Rome".')
    assert read_answer(text, LIMITS).short_summary == 'The user booked a flight to "Rome".'


@with_rows
def test_unusable_answer_says_why(text: str, problem: str) -> None:
    with pytest.raises(AnswerUnusable, match=problem):
        read_answer(text, LIMITS)


@given(st.text(min_size=8))
def test_problem_never_repeats_the_answer(text: str) -> None:
    secret = f"xx{text}xx"
    with pytest.raises(AnswerUnusable) as raised:
        read_answer('{"title": ' + secret, LIMITS)
    assert secret not in str(raised.value)


@with_rows
def test_refusals_are_recognized(text: str) -> None:
    assert is_refusal(text)


@with_rows
def test_summary_about_a_refusal_is_no_refusal(text: str) -> None:
    assert not is_refusal(text)


def test_leaked_control_tokens_and_white_space_are_removed() -> None:
    answer = read_answer(written(short_summary="<|im_start|>The user\n\n booked.<|im_end|> "), LIMITS)
    assert answer.short_summary == "The user booked."


def test_title_loses_its_quotation_marks() -> None:
    assert read_answer(written(title='"A flight"'), LIMITS).title == "A flight"


@given(
    *(st.text(max_size=3000).map(lambda text: "A fact. " + text) for _ in GOOD),
    st.integers(50, 200),
    st.sampled_from([400, 1000, 1500]),
)
def test_every_text_keeps_its_length(
    title: str, short: str, long: str, rolling: str, tokens: int, long_characters: int
) -> None:
    text = written(title=title, short_summary=short, long_summary=long, rolling_summary=rolling)
    answer = read_answer(text, Limits(tokens, long_characters))
    assert 0 < len(answer.title) <= 60
    assert 0 < len(answer.short_summary) <= 400
    assert 0 < len(answer.long_summary) <= long_characters
    assert 0 < count_tokens(answer.rolling_summary) <= tokens


def test_overlong_texts_are_cut_at_a_sentence_end() -> None:
    answer = read_answer(written(long_summary="The user asked something. " * 100), LIMITS)
    assert answer.long_summary.endswith("something. …")


def test_overlong_rolling_summary_keeps_first_and_newest_facts() -> None:
    filler = "They talked about this and that for a while. " * 100
    rolling = f"The user is Ada Lovelace, order 4711. {filler}The flight to Rome leaves on 5 May."
    kept = read_answer(written(rolling_summary=rolling), Limits(100)).rolling_summary
    assert "4711" in kept
    assert "5 May" in kept


def test_default_summary_has_at_most_a_thousand_characters() -> None:
    long = "The user asked something. " * 100
    assert 900 < len(read_answer(written(long_summary=long), LIMITS).long_summary) <= 1000
    raised = Limits(800, long_characters=1500)
    assert 1400 < len(read_answer(written(long_summary=long), raised).long_summary) <= 1500


def test_only_requested_texts_are_required() -> None:
    texts = {field: text for field, text in GOOD.items() if field != "rolling_summary"}
    assert read_answer(json.dumps(texts), LIMITS, tuple(texts)).rolling_summary == ""
    with pytest.raises(AnswerUnusable, match='"rolling_summary" was missing'):
        read_answer(json.dumps(texts), LIMITS)


@pytest.mark.parametrize(("levels", "is_read"), [(500, True), (501, False), (2_000, False)])
def test_plain_answer_within_500_levels_is_read(levels: int, is_read: bool) -> None:
    sentence = "The user booked a flight to Rome."
    answer = "[" * levels + json.dumps(sentence) + "]" * levels
    assert (read_plain(answer, "long_summary", LIMITS) == sentence) is is_read


SAID = "Ada cancelled order 4711. The refund takes three days."


@with_rows
def test_only_the_text_itself_is_taken(text: str) -> None:
    assert read_plain(text, "long_summary", LIMITS) == SAID


@with_rows
def test_text_that_mentions_a_tag_or_label_stays(said: str) -> None:
    assert (
        read_plain(said, "long_summary", LIMITS).split() == said.replace("</think>", "/think").replace("- ", "").split()
    )


@pytest.mark.parametrize(
    "text", ["Title: A refund", '"A refund".', "A refund.\nIt is about order 4711.", "**A refund**"]
)
def test_title_is_one_line_without_label_quotes_or_stop(text: str) -> None:
    assert read_plain(text, "title", LIMITS) == "A refund"


def test_surplus_sentences_are_dropped() -> None:
    text = " ".join(f"Fact {n} is told." for n in range(9))
    assert read_plain(text, "long_summary", LIMITS, 5) == " ".join(f"Fact {n} is told." for n in range(5))


@with_rows
def test_unusable_plain_answer_says_why(text: str, problem: str) -> None:
    with pytest.raises(AnswerUnusable, match=problem):
        read_plain(text, "long_summary", LIMITS)


@given(
    st.one_of(st.text(), st.lists(st.sampled_from([*TOKENS, "user\n", "A fact. ", "\n", '"'])).map("".join)),
    st.sampled_from(["title", "short_summary", "long_summary", "rolling_summary"]),
)
def test_any_answer_loses_control_tokens_and_keeps_lengths(text: str, field: str) -> None:
    try:
        said = read_plain(text * 30, field, Limits(60, 400))
    except AnswerUnusable:
        return
    assert said
    assert not any(token in said for token in TOKENS)
    longest = {"title": 60, "short_summary": 400, "long_summary": 400}.get(field)
    assert len(said) <= longest if longest else count_tokens(said) <= 60
