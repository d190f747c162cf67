"""When episodes are over, and what is numbered together."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from afterword.streams.section import Seconds, Section
from afterword.streams.triggers import Node, Preset, parse_trigger, preset_of, read_trigger

Scope = Literal["conversation", "agent"]


def _checked(written: object) -> Any:
    trigger = read_trigger(written)
    parse_trigger(trigger, tokens=1)
    return trigger


Trigger = Annotated[Any, BeforeValidator(_checked)]
"""A whole number, a preset's name, a table or a list; not a type that pydantic-settings would decode and merge itself:
a trigger from the environment replaces the file's as a whole."""


class Episodes(Section):
    trigger: Trigger = Field(
        10,
        description="when pending messages close: so many of them, a preset or conditions; see docs/triggers.md",
        json_schema_extra={"type_name": "whole number, name of a preset, or JSON"},
    )
    trigger_tokens: int = Field(
        4000, ge=1, description="pending tokens that close episodes too, when trigger is a number or `default`"
    )
    auto_summarize: bool = Field(True, description="false: only flush and silence close episodes")
    min_episode_size: int = Field(
        2, ge=1, description="messages; a shorter one is sealed only by idle, flush or tokens"
    )
    max_episode_size: int = Field(20, ge=1, description="messages; a longer one is sealed whatever the topic")
    max_episode_tokens: int = Field(4000, ge=1, description="tokens of one episode, unless one message alone has more")
    overlap: int = Field(2, ge=0, description="messages of the episode before that the LLM is shown")
    idle_seconds: Seconds = Field(300.0, description="silence that closes all that is pending")
    dedupe_window: int = Field(1000, ge=1, description="messages of a conversation whose ids are remembered")
    scope: Scope = Field(
        "conversation", description="what is pending and numbered together; whoever changes it needs new ids and topics"
    )
    max_agents: int = Field(
        16, ge=1, le=100, description="agents of a conversation that are active at a time, with scope = agent"
    )

    @model_validator(mode="after")
    def possible(self) -> Self:
        if self.overlap > self.max_episode_size:
            raise ValueError(f"overlap ({self.overlap}) is larger than max_episode_size ({self.max_episode_size})")
        if self.min_episode_size > self.max_episode_size:
            raise ValueError(
                f"min_episode_size ({self.min_episode_size}) is larger than max_episode_size ({self.max_episode_size})"
            )
        return self

    def conditions(self) -> Node:
        """The trigger, parsed."""
        return parse_trigger(self.trigger, self.trigger_tokens)

    @property
    def preset(self) -> Preset:
        """The one that `trigger` names, else the default one: what holds where nothing else is set."""
        return preset_of(self.trigger)
