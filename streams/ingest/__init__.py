"""`afterword worker ingest` turns records of other applications' topics into `messages`, exactly once."""
