"""The summarizer: from a closed episode to a stored and announced summary."""
