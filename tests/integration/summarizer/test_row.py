"""The row that `make test-llm` prints for a configured LLM."""

from afterword.streams.settings import Llm, Settings
from tests.llm.row import row_of
from tests.openai_server import COMPLETION_TOKENS, PROMPT_TOKENS, LlmServer, success

VAGUE = dict.fromkeys(("short_summary", "long_summary", "rolling_summary"), "The user asked something.")


def settings_of(server: LlmServer) -> Settings:
    prices = {"prompt_price": 1.0, "answer_price": 2.0, "currency": "EUR"}
    return Settings(llm=Llm(provider="openai", base_url=f"{server.url}/v1", model="a-model", attempts=1, **prices))


async def test_row_counts_accepted_summaries_and_their_price(llm_server: LlmServer) -> None:
    llm_server.usual = success({"title": "A question", **VAGUE, "facts": []})
    row, refused = await row_of(settings_of(llm_server), episodes=2)
    assert (row["model"], row["accepted"], row["facts"]) == ("a-model", "2 of 2", "0.000")
    asked = len(llm_server.requests) / 2
    assert row["tokens"] == f"{asked * PROMPT_TOKENS:.0f} + {asked * COMPLETION_TOKENS:.0f}"
    assert row["price"] == f"{asked * (PROMPT_TOKENS + 2 * COMPLETION_TOKENS) / 1000:.2f} EUR"
    assert not refused


async def test_row_counts_refused_summaries_by_their_reasons(llm_server: LlmServer) -> None:
    row, refused = await row_of(settings_of(llm_server), episodes=2)
    assert (row["accepted"], row["facts"]) == ("0 of 2", "0.000")
    assert sum(refused.values()) == 2
