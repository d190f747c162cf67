"""`afterword worker ingest`: records of other applications' topics → `messages`, exactly once."""
