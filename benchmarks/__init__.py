"""Benchmarks: speed compared with other programs (`make bench`), and quality on labelled data (`make quality`)."""
