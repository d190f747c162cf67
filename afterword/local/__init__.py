"""Runs a whole deployment on one machine, and a demo of it."""
