"""How often recall finds the episode that answers a question, with and without dense vectors."""
