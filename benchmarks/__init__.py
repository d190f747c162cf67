"""Benchmarks: speed beside others (`make bench`), and quality on labelled data (`make quality`)."""
