"""Settings about an LLM that does not answer, or may not be asked."""

from typing import Literal, Self

from pydantic import Field, model_validator

from afterword.streams.section import Seconds, Section


class Retry(Section):
    """Of fallbacks: when the LLM is asked again."""

    attempts: int = Field(100, ge=0, description="how often the LLM is asked again; 0: fallbacks stay")
    unusable_answers: int = Field(3, ge=1, description="of these, how many may end with an answer that cannot be used")
    first_delay_seconds: Seconds = Field(30.0, description="before the first attempt; doubles with each")
    longest_delay_seconds: Seconds = Field(900.0, description="between two attempts at most")

    @model_validator(mode="after")
    def possible(self) -> Self:
        if self.first_delay_seconds > self.longest_delay_seconds:
            given = f"first_delay_seconds ({self.first_delay_seconds:g})"
            raise ValueError(f"{given} is longer than longest_delay_seconds ({self.longest_delay_seconds:g})")
        return self


class Budget(Section):
    """Tokens of the LLM, of all summarizers together, in each hour of the clock (UTC)."""

    tokens_per_hour: int | None = Field(None, ge=1, description="prompt and completion, of all tenants; default: any")
    tenant_tokens_per_hour: int | None = Field(None, ge=1, description="of each tenant; default: any number")
    on_exhausted: Literal["fallback", "wait"] = Field(
        "fallback",
        description="fallback: summarise without the LLM, and ask it later; wait: until the hour ends",
    )

    @property
    def limited(self) -> bool:
        return self.tokens_per_hour is not None or self.tenant_tokens_per_hour is not None
