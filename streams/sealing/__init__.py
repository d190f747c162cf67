"""Sealing: texts under a key per user, so that destroying the key erases them wherever they are."""
