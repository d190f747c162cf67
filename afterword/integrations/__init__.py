"""Adapters: Afterword as a part of other frameworks. Each file is one framework's, and needs the extra of its name."""

from afterword.streams.errors import AfterwordError


class AsyncOnly(AfterwordError, NotImplementedError):
    """{called} is not supported: use {instead} on an event loop"""
