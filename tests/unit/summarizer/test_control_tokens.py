"""Tokens that structure a chat never survive in a text."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import NoOpTracer

from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import load_settings
from afterword.streams.summarizer.control_tokens import strip_control_tokens, use_control_tokens
from afterword.streams.summarizer.summarizer import make_summarizer
from afterword.streams.telemetry import Metrics
from tests.doubles.stores import MemoryBudgets, MemoryReplies

TOKENS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>"),
    *("[INST]", "[/INST]", "<<SYS>>", "<</SYS>>", "<s>", "</s>", "[AVAILABLE_TOOLS]", "[/TOOL_RESULTS]"),
    *(
        "[|system|]",
        "[|endofturn|]",
        "[THINK]",
        "[/THINK]",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "<tools>",
    ),
    *("<start_of_image>", "[gMASK]", "<sop>", "<arg_key>", "</arg_value>", "]~b]", "]~!b[", "[e~[", "<seed:bos>"),
    *("<minimax:tool_call>", "</function_call>"),
    *("<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>", "<｜begin▁of▁sentence｜>", "<think>", "</think>"),
]


@pytest.mark.parametrize("token", TOKENS)
def test_a_control_token_is_replaced_by_a_space(token: str) -> None:
    assert strip_control_tokens(f"before{token}after") == "before after"


@pytest.mark.parametrize(
    "text",
    [
        "a < b > c",
        "x |> f",
        "[1] and [INSTALL]",
        "<b>bold</b>",
        "if a<|b",
        "[|1; 2|] in OCaml",
        "a [| b |] c",
        "Ünïcödé 订单",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert strip_control_tokens(text) == text


@given(st.lists(st.sampled_from([*TOKENS, "<|", "|>", "<", ">", "s", "im_start", " ", "[", "INST]", "a"])).map("".join))
def test_no_token_is_left_and_none_arises_from_the_pieces(text: str) -> None:
    stripped = strip_control_tokens(text)
    assert not any(token in stripped for token in TOKENS)
    assert strip_control_tokens(stripped) == stripped


def test_what_utf8_cannot_hold_is_removed() -> None:
    assert strip_control_tokens("a\ud800b\x00c\nd") == "abc\nd"


@pytest.fixture
def added() -> Iterator[list[str]]:
    tokens = ["[[USER]]", "[[USER]]!", "{turn:bot}", "(.*)+"]
    use_control_tokens(tokens)
    yield tokens
    use_control_tokens([])


def test_tokens_of_the_setting_are_stripped_beside_the_known_ones(added: list[str]) -> None:
    for token in [*added, *TOKENS]:
        assert strip_control_tokens(f"before{token}after") == "before after"
    assert strip_control_tokens("a user (.+) {turn:user}") == "a user (.+) {turn:user}"


@given(st.lists(st.sampled_from(["[[", "USER", "]]", "!", "{turn:", "bot}", "<s", ">", "[INST]", " "])).map("".join))
def test_none_of_them_arises_from_the_pieces(text: str) -> None:
    tokens = ["[[USER]]", "[[USER]]!", "{turn:bot}"]
    use_control_tokens(tokens)
    try:
        stripped = strip_control_tokens(text)
    finally:
        use_control_tokens([])
    assert not any(token in stripped for token in [*tokens, *TOKENS])


def test_a_summarizer_strips_the_tokens_of_its_settings() -> None:
    settings = load_settings(summarizer={"control_tokens": " [[USER]]  {turn:bot} "}, llm={"provider": "extractive"})
    try:
        make_summarizer(settings, MemoryBudgets(), MemoryReplies(), Metrics("summarizer", "0"), NoOpTracer())
        assert strip_control_tokens("a[[USER]]b{turn:bot}c") == "a b c"
    finally:
        use_control_tokens([])


@pytest.mark.parametrize("given", ["ab", "word", "x" * 65 + "|", "<ok> a", "<" * 4001])
def test_a_token_that_would_strip_words_or_is_too_long_stops_the_start(given: str) -> None:
    with pytest.raises(ConfigurationError, match="AFTERWORD_SUMMARIZER__CONTROL_TOKENS"):
        load_settings(summarizer={"control_tokens": given})
