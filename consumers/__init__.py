"""Plain aiokafka: the archiver, and the typed subscriber that other Python services listen with."""

from consumers.subscriber import SummarySubscriber

__all__ = ["SummarySubscriber"]
