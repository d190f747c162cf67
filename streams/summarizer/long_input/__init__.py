"""What an LLM is shown of an episode that is longer than its context, and how its parts become one summary."""

from afterword.streams.summarizer.long_input.provider import LongInput

__all__ = ["LongInput"]
