"""Metrics, and traces, which load no Prometheus."""
