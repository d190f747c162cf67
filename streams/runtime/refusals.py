"""Time limit for refusals by Kafka that no retry can change."""

from aiokafka.errors import OutOfOrderSequenceNumber

from afterword.streams.runtime.errors import FATAL

REFUSED_SECONDS = 60.0
"""Time for which Kafka may refuse a record that no retry can make acceptable: rights that are changed take a moment."""


class Refusals:
    """Decides when Kafka has refused one record for too long. Errors that may pass restart the limit."""

    def __init__(self, limit_seconds: float) -> None:
        self._limit = limit_seconds
        self._since: float | None = None

    def are_final(self, error: Exception, now: float) -> bool:
        """Take one more failure in. `now`: seconds of a monotonic clock."""
        if isinstance(error, FATAL):
            self._since = now if self._since is None else self._since
        elif not isinstance(error, OutOfOrderSequenceNumber):  # that follows the refusal of another record
            self._since = None
        return self._since is not None and now - self._since >= self._limit
