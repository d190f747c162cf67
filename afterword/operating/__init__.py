"""Operating: what an operator runs on a deployment, from its topics to the erasure of a person."""
