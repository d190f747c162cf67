"""Erases a person: finds what they wrote, deletes it through the log, waits until it is gone, and proves it."""
