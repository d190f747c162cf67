"""The table of chat protocols."""

from typing import Any, get_args

import pytest

from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import PROTOCOLS, read_openai_reply


def test_every_allowed_provider_is_in_the_table() -> None:
    allowed = set(get_args(Llm.model_fields["provider"].annotation)) - {"extractive"}
    assert set(PROTOCOLS) == allowed


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"cache_read_input_tokens": 64}, 64),
        ({"prompt_tokens_details": {"cached_tokens": 512}}, 100),
        ({"prompt_tokens_details": {"cached_tokens": None}}, 0),
        ({"prompt_tokens_details": [64]}, 0),
        ({}, 0),
    ],
)
def test_cached_tokens_are_read(usage: dict[str, Any], cached: int) -> None:
    choice = {"message": {"content": "{}"}, "finish_reason": "stop"}
    reply = read_openai_reply({"choices": [choice], "usage": {"prompt_tokens": 100, **usage}}, {})
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (100, cached)
