"""Calls of an LLM server: one client, and one small class for each chat protocol."""
