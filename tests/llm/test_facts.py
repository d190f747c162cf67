"""Counts the facts of a real, bad LLM, which may state none that can be used."""

import pytest

from tests.llm.conftest import MODEL, Llama
from tests.llm.facts import ANSWER_TOKENS, measured, show


@pytest.mark.timeout(1800)
async def test_bad_llms_facts_are_counted_before_and_after_gate(llama: Llama) -> None:
    found = await measured(llama.settings(max_output_tokens=ANSWER_TOKENS, retry_budget_seconds=600))
    show(MODEL, found)
    assert found.kept <= found.stated
