"""Stores: protocols by subject, a file for each backend, and `open_stores`, which says which backend holds what."""
