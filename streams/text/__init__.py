"""Texts: languages, sentences, words, tokens, and which characters may be shown. Pure functions."""
