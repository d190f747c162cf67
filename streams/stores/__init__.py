"""MongoDB and Qdrant, and the in-memory stores that pass the same contract tests."""
