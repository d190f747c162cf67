"""Quality of the quality gate and of summaries without an LLM, on labelled data: `make quality`."""
