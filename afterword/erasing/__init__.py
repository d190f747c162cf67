"""Erasing a person: find what they wrote, delete it through the log, wait until it is gone, and prove it."""
