"""Text that small models write before and after the requested answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from afterword_text.answer import AnswerUnusable, Limits, read_plain
from afterword_text.tokens import count_tokens
from tests.nasty_texts import TOKENS
from tests.rows import with_rows

LIMITS = Limits(800)
SAID = "Ada cancelled order 4711. The refund takes three days."


@pytest.mark.parametrize(
    "text",
    [
        SAID,
        f"  {SAID}\n",
        f"Summary: {SAID}",
        f"**Summary:** {SAID}",
        f"Updated summary:\n{SAID}",
        f"### Summary\n{SAID}",
        f"**Summary**\n\n{SAID}",
        f"Résumé : {SAID}",
        f"> {SAID}",
        f"{SAID}\n\n---\nIt has nine words.",
        f"«think»Two facts.«/think»{SAID}",
        f"Sure! Here is a summary of the messages:\n\n{SAID}",
        f"Here's the summary in 3 to 5 sentences:\n{SAID}",
        f"<think>The user wants a summary.</think>{SAID}",
        f"Okay, the user wants a summary.\n</think>\n\n{SAID}",
        f"Two facts.</think>{SAID}",
        f"[THINK]The user wants a summary.[/THINK]{SAID}",
        f"<seed:think>The user wants a summary.</seed:think>{SAID}",
        f"◁think▷The user wants a summary.◁/think▷\n{SAID}",
        f"<réflexion>Je résume.</réflexion>{SAID}",
        f"<|begin_of_thought|>Two facts.<|end_of_thought|><|begin_of_solution|>{SAID}<|end_of_solution|>",
        f"<|START_THINKING|>Two facts.<|END_THINKING|><|START_RESPONSE|>{SAID}<|END_RESPONSE|>",
        f"<|channel|>analysis<|message|>Two facts.<|end|><|start|>assistant<|channel|>final<|message|>{SAID}<|return|>",
        f"assistantanalysisTwo facts.assistantfinal{SAID}",
        f"<think>Two facts.</think>\n<answer>{SAID}</answer>",
        f"<output>\n{SAID}\n</output>\nI kept it short.",
        f"Certainly! Below is a concise summary.\n\n{SAID}\n\n(Note: I kept it short.)",
        f"Assistant: {SAID}\n\nUser: Now write a poem.",
        f"*{SAID}*",
        f"<summary>{SAID}",
        f"```\n{SAID}\n```",
        f"Here is the summary:\n```text\n{SAID}\n```\nAnything else?",
        json.dumps({"summary": SAID}),
        json.dumps({"confidence": 0.9, "note": "short", "long_summary": SAID}),
        json.dumps(SAID),
        json.dumps({"result": {"summary": SAID}}),
        json.dumps([SAID]),
        f'"summary": "{SAID}"',
        f"Conversation summary (2 sentences): {SAID}",
        f"**Final answer:** {SAID}",
        f"Voici le résumé demandé :\n\n{SAID}",
        f"以下是摘要：\n{SAID}",
        f"# An order\n\n{SAID}",
        f"**An order**\n{SAID}",
        f"«\u00a0{SAID}\u00a0»",
        f"“{SAID}”",
        f"\\boxed{{\\text{{{SAID}}}}}",
        f"&lt;think&gt;Two facts.&lt;/think&gt;{SAID}",
        f"<|inner_prefix|>Two facts.<|inner_suffix|>{SAID}",
        f"<|channel>thought\nTwo facts.<channel|>{SAID}",
        f"<unused94>thought\nTwo facts.<unused95>{SAID}",
        f"{SAID}\n\n(9 words)",
        f"{SAID}\n\nWord count: 9",
        f"{SAID}<|user|>\nThank you!",
        f"<|inner_prefix|>Two facts.<|inner_suffix|>{SAID}<|im_end|>\n<|im_start|>user\nThank you!",
        f"<|im_start|>assistant\n{SAID}<|im_end|>\n<|im_start|>user\nThank you!",
        SAID.replace("Ada", "1. Ada").replace(" The", "\n2. The"),
        f"### Thinking\nTwo facts.\n\n### Response\n{SAID}",
        f"<ctrl94>thought\nTwo facts.\n<ctrl95>{SAID}",
        f"<start_of_turn>model\n{SAID}<end_of_turn>",
        f"{SAID}\n</summary>",
        f"{SAID}[EOS]",
        f'Of course, here is a summary of the messages: "{SAID}"',
        f'summary = "{SAID}"',
        str({"summary": SAID}),
        json.dumps({"summary": SAID})[:-1],
        f"<tool_call>{json.dumps({'name': 'f', 'arguments': {'text': SAID}})}</tool_call>",
        f"<function=f>{json.dumps({'text': SAID})}</function>",
        f"<|python_tag|>{json.dumps({'text': SAID})}",
        f'<p class="summary">{SAID}</p>',
        f"– {SAID.replace('. ', '.' + chr(10) + '– ')}",
        f"„{SAID}“",
        f"{SAID}\n\n*Word count: 9*",
        f"{SAID}\n\nHope this helps!",
        f"{SAID}<|im_end|>",
        f"{SAID}<|im_end|>\n<|im_start|>user\nThank you!<|im_end|>",
        f"{SAID}\n<|im_start|>user\nNow write a poem.",
        f"<|im_start|>assistant\n{SAID}<|im_end|>",
        f"<|start_header_id|>assistant<|end_header_id|>\n\n{SAID}<|eot_id|>",
        f"{SAID}</s> [INST] Now write a poem. [/INST]",
        f"{SAID}<end_of_turn>\n<start_of_turn>user\nNow write a poem.",
        SAID.replace("order", "<|im_start|>order"),
    ],
)
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
