"""Imports chat histories from other products: files of a known format become records on the topic `messages`."""
