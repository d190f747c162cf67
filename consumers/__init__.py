"""Plain aiokafka: the archiver, and the typed subscriber that other Python services listen with."""

from afterword.consumers.subscriber import SummarySubscriber

__all__ = ["SummarySubscriber"]
