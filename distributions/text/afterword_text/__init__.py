"""Reads chats in many languages: see the README. Pure functions, linear in the text's length."""
