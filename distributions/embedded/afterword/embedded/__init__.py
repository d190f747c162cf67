"""Runs a real Kafka as a child process, without Docker and without an installed Java.

It is meant for laptops and tests, and for POSIX systems only. The distribution is `afterword-embedded`, which the extra
`dev` installs.
"""

from afterword.embedded.claims import DirectoryInUse as DirectoryInUse
from afterword.embedded.java import DownloadProgress as DownloadProgress
from afterword.embedded.java import JarsUnavailable as JarsUnavailable
from afterword.embedded.process import Process as Process
from afterword.embedded.process import ProcessExited as ProcessExited
from afterword.embedded.process import StartTimeout as StartTimeout
from afterword.embedded.stack import DiskFull as DiskFull
from afterword.embedded.stack import EmbeddedStack as EmbeddedStack
