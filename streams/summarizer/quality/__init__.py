"""The quality gate: whether a summary may be stored, judged by its texts and its source alone."""

from afterword.streams.summarizer.quality.assess import (
    LONG_SENTENCES,
    SHORT_SENTENCES,
    Assessment,
    Problem,
    QualityRules,
    SourceTexts,
    Texts,
    assess,
    share_of_pairs,
)

__all__ = [
    "LONG_SENTENCES",
    "SHORT_SENTENCES",
    "Assessment",
    "Problem",
    "QualityRules",
    "SourceTexts",
    "Texts",
    "assess",
    "share_of_pairs",
]
