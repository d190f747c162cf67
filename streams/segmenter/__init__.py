"""`messages` → `episode.closed`: when an episode is over, and what is in it."""
