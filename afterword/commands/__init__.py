"""Commands, grouped by subject."""
