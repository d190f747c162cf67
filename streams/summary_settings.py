"""Settings about what writes the summaries, what is asked of it, and what is checked."""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from afterword.streams import prompt_template
from afterword.streams.section import Seconds, Section

LOCAL_EMBEDDER = "wordllama-l2-supercat-256"

MOST_PENDING_EPISODES = 20
"""That many episodes the rolling summary may be behind: its next update is told of all of them."""


class Llm(Section):
    provider: Literal["extractive", "openai", "ollama"] = Field("extractive", description="who writes the summaries")
    base_url: str | None = Field(None, description="default: the provider's own address")
    model: str | None = Field(None, description="required for openai and ollama")
    title_model: str | None = Field(
        None, min_length=1, description="of the same server: makes the titles, from the summaries; default: model"
    )
    chat_format: Literal["messages", "chatml"] = Field(
        "messages", description="chatml: one raw ChatML prompt, for a server that knows no chat template of the model"
    )
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    ca_file: Path | None = Field(None, description="PEM: CAs of the server; default: those of certifi")
    temperature: float = Field(0.2, ge=0, le=2, description="of the model; lower is more literal")
    max_output_tokens: int | None = Field(
        None, ge=64, description="tokens of one answer; default: 500 for plain text, for JSON what its texts may need"
    )
    context_tokens: int = Field(
        32_768,
        ge=4096,
        description="what the model takes at a time; a longer episode is summarised in parts",
    )
    cache_seconds: int = Field(
        2_592_000,
        ge=0,
        le=315_360_000,
        description="how long an answer is kept, so that it is not asked for again; 0: not at all",
    )
    timeout_seconds: Seconds = Field(60.0, description="one call")
    attempts: int = Field(4, ge=1, description="calls in all for connection errors, 429 and 5xx")
    retry_budget_seconds: Seconds = Field(180.0, description="no further attempt is begun after this")
    json_attempts: int = Field(3, ge=1, description="calls in all until the answer can be used")
    max_concurrency: int = Field(8, ge=1, description="calls at a time")

    @model_validator(mode="after")
    def complete(self) -> Self:
        if self.provider != "extractive" and not self.model:
            raise ValueError(f"model is required with provider = {self.provider}")
        if self.max_output_tokens and 2 * self.max_output_tokens > self.context_tokens:
            given = f"max_output_tokens ({self.max_output_tokens})"
            raise ValueError(f"{given} is more than half of context_tokens ({self.context_tokens})")
        return self


class Embedder(Section):
    provider: Literal["none", "openai", "ollama", "local"] = Field("none", description="dense vectors; none by default")
    base_url: str | None = Field(None, description="default: the provider's own address")
    model: str | None = Field(None, description="required for openai and ollama")
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    ca_file: Path | None = Field(None, description="PEM: CAs of the server; default: those of certifi")
    timeout_seconds: Seconds = Field(30.0, description="one call")

    @model_validator(mode="after")
    def complete(self) -> Self:
        if self.provider in ("openai", "ollama") and not self.model:
            raise ValueError(f"model is required with provider = {self.provider}")
        return self

    @property
    def vectors_model(self) -> str | None:
        """What made the dense vectors; part of the collection's name. None: there are none."""
        if self.provider == "local":
            return LOCAL_EMBEDDER
        return self.model if self.provider != "none" else None


class Summarizer(Section):
    on_llm_outage: Literal["fallback", "wait"] = Field(
        "fallback",
        description="fallback: summarise without the LLM, and ask it later; wait: store nothing, be not ready",
    )
    preset: Literal["episodic", "focus_points", "plain_3_5"] = Field(
        "episodic", description="what the LLM is asked for; plain_3_5: plain text, for small models without JSON"
    )
    prompt: str | None = Field(None, description="a template instead of the preset's: see docs/summaries.md")
    prompt_file: Path | None = Field(None, description="a file with that template")
    max_summary_length: int | None = Field(
        None, ge=400, le=10_000, description="characters of the long summary; default: 1000, or the trigger preset's"
    )
    tool_output_characters: int = Field(
        2000, ge=100, description="a longer output of a tool is shown to the LLM without its middle"
    )

    @field_validator("prompt")
    @classmethod
    def is_template(cls, text: str | None) -> str | None:
        if text is not None:
            prompt_template.check(text)
        return text

    @field_validator("prompt_file")
    @classmethod
    def is_file_with_template(cls, file: Path | None) -> Path | None:
        if file is not None:
            prompt_template.check(_text_of(file))
        return file

    @model_validator(mode="after")
    def one_template(self) -> Self:
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("prompt and prompt_file exclude each other")
        return self

    def template(self) -> str | None:
        """What was written instead of the preset's; None: nothing. Raises: ValueError if its file is gone."""
        return _text_of(self.prompt_file) if self.prompt_file is not None else self.prompt


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:  # the error's own text quotes the bytes
        raise ValueError(f"{file}: not UTF-8 text") from None


class Rolling(Section):
    max_tokens: int = Field(800, ge=50, description="a rolling-summary row longer than this is followed by a new one")
    min_new_episodes: int = Field(
        1, ge=1, le=MOST_PENDING_EPISODES, description="episodes after which the rolling summary is made anew"
    )
    min_tokens: int = Field(0, ge=0, description="tokens that these episodes must have, too")


class Quality(Section):
    enabled: bool = Field(True, description="false: summaries are measured, and none is refused")
    min_grounding: float = Field(
        0.8, ge=0, le=1, description="share of a summary's names, numbers and dates that its source must have"
    )
    strict_figures: bool = Field(
        True, description="one number, date, amount, code or address that its source lacks refuses a summary"
    )
