"""Reads topics, and waits for what others write and read there."""
