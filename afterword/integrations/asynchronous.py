"""The refusal of calls that would block: `Memory` is asynchronous, and bound to the event loop that it was used on."""

from afterword.streams.errors import AfterwordError


class AsyncOnly(AfterwordError, NotImplementedError):
    """{called} is not supported: use {instead} on an event loop"""
