"""The quality gate decides, from a summary's texts and its source alone, whether it may be stored."""

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
