"""Texts: languages, sentences, words, tokens, and what of a text may be shown. Pure."""
