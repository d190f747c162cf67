"""From `messages` to the archive: stores the latest version of every message."""
