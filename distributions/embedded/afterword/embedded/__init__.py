"""Runs a real Kafka as a child process, without Docker and without an installed Java.

It is meant for laptops and tests, and for POSIX systems only. The distribution is `afterword-embedded`, which the extra
`dev` installs.
"""

from afterword.embedded.claims import DirectoryInUse
from afterword.embedded.java import DownloadProgress, JarsUnavailable
from afterword.embedded.process import Process, ProcessExited, StartTimeout
from afterword.embedded.stack import DiskFull, EmbeddedStack

__all__ = [
    "DirectoryInUse",
    "DiskFull",
    "DownloadProgress",
    "EmbeddedStack",
    "JarsUnavailable",
    "Process",
    "ProcessExited",
    "StartTimeout",
]
