"""Errors of the embedded stack."""

from afterword.streams.errors import AfterwordError


class EmbeddedError(AfterwordError):
    """the embedded stack cannot run"""


class JarsUnavailable(EmbeddedError):
    """cannot fetch {jar}: {problem}"""


class DirectoryInUse(EmbeddedError):
    """{directory} is in use by a running stack (process {pid}); stop it, or choose another --data-dir"""


class ProcessExited(EmbeddedError):
    """{name} exited with {code}; the end of {log}:\n{tail}"""


class StartTimeout(EmbeddedError):
    """{name} was not ready within {seconds:g} seconds ({problem}); the end of {log}:\n{tail}"""
