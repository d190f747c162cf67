"""Calls to an LLM server: one client, and one small class per chat protocol."""
