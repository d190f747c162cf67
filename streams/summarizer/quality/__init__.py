"""Whether a summary may be stored, told from its texts and its source alone: no network, no second model."""

from afterword.streams.summarizer.quality.assess import (
    LONG_SENTENCES,
    SHORT_SENTENCES,
    Assessment,
    Problem,
    Rules,
    Said,
    Texts,
    assess,
)

__all__ = ["LONG_SENTENCES", "SHORT_SENTENCES", "Assessment", "Problem", "Rules", "Said", "Texts", "assess"]
