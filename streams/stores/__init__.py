"""Stores: protocols by subject, one file per backend, and `open_stores`, which chooses the backends."""
