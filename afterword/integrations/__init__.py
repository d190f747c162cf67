"""Adapters for other frameworks. Each file serves one framework and needs the extra of the same name."""

from afterword.streams.errors import AfterwordError


class AsyncOnly(AfterwordError, NotImplementedError):
    """{called} is not supported; use {instead} on an event loop"""
