"""The texts of a summary."""

from dataclasses import dataclass

FIELDS = ("title", "short_summary", "long_summary", "rolling_summary")
"""The texts of a summary, by the names that an answer gives them."""
FACTS = "facts"
"""The answer's field with the facts, after the texts."""
TITLE_CHARACTERS = 60
SHORT_CHARACTERS = 400
MAX_SUMMARY_LENGTH = 1000
"""Maximum number of characters of the long summary, unless the settings say otherwise."""


@dataclass(frozen=True)
class Texts:
    """The texts of one summary, which can be stored as they are: not empty, without control tokens, and within their
    lengths.
    """

    title: str
    """Title of at most 60 characters."""
    short_summary: str
    """1–2 sentences, at most 400 characters."""
    long_summary: str
    """3–8 sentences, at most the request's `max_summary_length`."""
    rolling_summary: str = ""
    """The conversation up to this episode, at most the request's `rolling_tokens`. If it is empty, the long summary is
    added to what was said before."""

    @property
    def of_episode(self) -> tuple[str, str, str]:
        return (self.title, self.short_summary, self.long_summary)

    @property
    def given(self) -> tuple[str, ...]:
        return (*self.of_episode, self.rolling_summary) if self.rolling_summary else self.of_episode
