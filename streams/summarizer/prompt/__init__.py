"""Prompts. Pure functions: the same episode always gives the same prompt."""

from afterword.streams.summarizer.prompt.structured import FACTS, FIELDS, SCHEMA, build_prompt, schema_of
from afterword.streams.summarizer.prompt.templates import EPISODIC, PLAIN, TEMPLATES, Template
from afterword.streams.text.fences import Messages, unused_prefix

__all__ = [
    "EPISODIC",
    "FACTS",
    "FIELDS",
    "PLAIN",
    "SCHEMA",
    "TEMPLATES",
    "Messages",
    "Template",
    "build_prompt",
    "schema_of",
    "unused_prefix",
]
