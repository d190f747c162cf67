"""The table of chat protocols."""

from typing import Any, get_args

from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm import PROTOCOLS, read_openai_reply
from tests.rows import with_rows


def test_every_allowed_provider_is_in_the_table() -> None:
    allowed = set(get_args(Llm.model_fields["provider"].annotation)) - {"extractive"}
    assert set(PROTOCOLS) == allowed


@with_rows
def test_cached_tokens_are_read(usage: dict[str, Any], cached: int) -> None:
    choice = {"message": {"content": "{}"}, "finish_reason": "stop"}
    reply = read_openai_reply({"choices": [choice], "usage": {"prompt_tokens": 100, **usage}}, {})
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens) == (100, cached)
