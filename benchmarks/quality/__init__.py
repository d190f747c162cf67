"""How good the quality gate and the summaries without an LLM are, on labelled data: `make quality`."""
