"""Reading back what Afterword remembers: for agents, and for the command line."""

from afterword.memory.context import Context
from afterword.memory.memory import EpisodePage, Memory
from afterword.memory.recall import OwnerMissing
from afterword.streams.stores.episodes import StoredEpisode
from afterword.streams.stores.index import Recalled

__all__ = ["Context", "EpisodePage", "Memory", "OwnerMissing", "Recalled", "StoredEpisode"]
