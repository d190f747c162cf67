"""Share of questions for which recall finds the episode with the answer, with and without dense vectors."""
