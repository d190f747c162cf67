"""From `messages` to `episode.closed`: decides when an episode is over and what is in it."""
