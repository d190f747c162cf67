"""Benchmarks: programs compared with each other in one run, never timed alone."""
