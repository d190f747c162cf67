"""Golden set: episodes of real conversations with the facts that a summary of each must hold; see README.md."""

from afterword.golden.episodes import Fact, FactKind, GoldenEpisode, episode_of_turns, golden_episodes
from afterword.golden.scoring import GoldenScore, is_held, score_writer

__all__ = [
    "Fact",
    "FactKind",
    "GoldenEpisode",
    "GoldenScore",
    "episode_of_turns",
    "golden_episodes",
    "is_held",
    "score_writer",
]
