"""Operating: what an operator runs on a deployment, from creating topics to erasing a person."""
