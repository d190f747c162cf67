"""What the summarizer's metrics tell of questions, answers and steps."""

import pytest

from afterword.schemas import Usage
from afterword.streams.errors import ProviderRateLimited
from afterword.streams.summarizer.counting import Counting
from afterword.streams.summarizer.providers.endpoint import ChatRequest, Reply
from afterword.streams.summarizer.providers.retrying import Budget, retrying
from afterword.streams.summarizer.providers.watched import Watched
from afterword.streams.telemetry import Metrics

QUESTION = ChatRequest([{"role": "user", "content": "secret"}], 100)


class Endpoint:
    """Gives its replies, and raises those that are errors, one after the other."""

    name = "endpoint"

    def __init__(self, *replies: Reply | Exception) -> None:
        self.replies = list(replies)

    async def chat(self, request: ChatRequest) -> Reply:
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("summarizer", "1.2.3")


@pytest.fixture
def counting(metrics: Metrics) -> Counting:
    return Counting(metrics)


async def test_each_question_is_counted_by_how_it_ended(counting: Counting, metrics: Metrics) -> None:
    replies = [Reply("yes", Usage(prompt_tokens=7, completion_tokens=3)), Reply("", Usage(), cut_off=True)]
    endpoint = Watched(Endpoint(*replies, ProviderRateLimited(retry_after=1)), counting, "m")
    await endpoint.chat(QUESTION)
    await endpoint.chat(QUESTION)
    with pytest.raises(ProviderRateLimited):
        await endpoint.chat(QUESTION)
    value = metrics.registry.get_sample_value
    ends = ("ok", "cut_off", "provider_rate_limited")
    assert [value("afterword_llm_requests_total", {"outcome": end}) for end in ends] == [1, 1, 1]
    assert value("afterword_llm_tokens_total", {"type": "prompt"}) == 7
    assert value("afterword_llm_tokens_total", {"type": "completion"}) == 3
    assert b"secret" not in metrics.text()


async def test_a_retry_is_counted_when_the_question_is_put_again_and_not_when_it_is_given_up(
    counting: Counting, metrics: Metrics
) -> None:
    failures = [ProviderRateLimited(retry_after=0) for _ in range(3)]

    async def call() -> None:
        raise failures.pop()

    with pytest.raises(ProviderRateLimited):
        await retrying("summarize", call, 3, Budget(0.2), counting.retried)
    labels = {"error_type": "provider_rate_limited"}
    assert metrics.registry.get_sample_value("afterword_llm_retries_total", labels) == 2 - len(failures)
