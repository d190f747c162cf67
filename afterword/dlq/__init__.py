"""Dead letters: looked at, sent again, or put away; each once, and on record."""
