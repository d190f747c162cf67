"""Waiting until everything is consumed and summarized."""

import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword.audit.log import POLL_MILLISECONDS, Log, ReadProgress, reached
from afterword.audit.snapshot import digest
from afterword.schemas.dead_letters import is_offset
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_ID, CE_TYPE, header
from afterword.streams.settings import Kafka


async def until_summarised(
    log: Log, kafka: Kafka, seconds: float, progress: ReadProgress = lambda *_: None
) -> list[str]:
    """Wait until all of `messages` is consumed and each closed episode is announced or dead-lettered.

    `progress` is called with the numbers of episodes that are finished, and of all.
    Returns notes: empty on success, or when `seconds` is 0.
    """
    outputs = (kafka.summaries_topic, kafka.deletions_topic, kafka.dead_letters(kafka.episodes_topic))
    topics = [kafka.episodes_topic, *outputs]
    if not seconds or not {*topics, kafka.messages_topic} <= await log.topics():
        return []
    deadline = time.monotonic() + seconds
    async with log.reader(*topics, isolation_level="read_committed") as consumer:
        await consumer.seek_to_beginning()
        open_events = OpenEvents(kafka.episodes_topic)
        while time.monotonic() < deadline:
            # order matters: what was consumed by now has its episodes among those that are read next
            consumed = await is_consumed(log, kafka)
            await open_events.catch_up(log, consumer, topics, deadline)
            finished = open_events.finished
            progress(
                "waiting for summaries" if consumed else "waiting for the segmenter",
                finished,
                finished + len(open_events.ids),
            )
            if consumed and not open_events.ids:
                return []
        return [f"after {seconds:g} s, {len(open_events.ids)} episodes are still not summarized"]


class OpenEvents:
    """Closed episodes that are neither announced, deleted nor dead-lettered.

    `ce_id` is the same on all topics: the episode's id and a revision. A later revision finishes an episode too: what
    is superseded before its announcement is not announced.
    """

    def __init__(self, episodes_topic: str) -> None:
        self.ids: set[bytes] = set()
        self._closed: dict[bytes, int] = {}
        self._done: dict[bytes, int] = {}
        """Latest revisions, by the episode."""
        self._episodes_topic = episodes_topic

    @property
    def finished(self) -> int:
        return len(self._closed) - len(self.ids)

    async def catch_up(self, log: Log, consumer: AIOKafkaConsumer, topics: list[str], deadline: float) -> None:
        """Read up to the current end of the topics, or until the deadline."""
        ends = {tp: end for topic in topics for tp, end in (await log.ends(topic)).items()}
        while True:
            for tp, records in (await consumer.getmany(timeout_ms=POLL_MILLISECONDS)).items():
                for record in records:
                    if header(record.headers, CE_TYPE) not in (EPISODE_AMENDED, EPISODE_REDO):
                        self.take(tp.topic, header(record.headers, CE_ID))
            if await reached(consumer, ends) or time.monotonic() > deadline:
                return

    def take(self, topic: str, event_id: str | None) -> None:
        name, _, revision = (event_id or "").rpartition(":")
        if not is_offset(revision):
            return
        key = digest(name)
        known = self._closed if topic == self._episodes_topic else self._done
        known[key] = max(known.get(key, 0), int(revision))
        if key in self._closed and self._closed[key] > self._done.get(key, 0):
            self.ids.add(key)
        else:
            self.ids.discard(key)


async def is_consumed(log: Log, kafka: Kafka) -> bool:
    """Check whether the segmenter's offsets are past every record, transaction markers aside."""
    committed = await log.committed(kafka.segmenter_id, kafka.messages_topic)
    ends = await log.ends(kafka.messages_topic)
    behind = {tp: end for tp, end in ends.items() if committed.get(tp.partition, 0) < end}
    return not behind or await _only_markers(log, kafka.messages_topic, behind, committed)


async def _only_markers(log: Log, topic: str, ends: dict[TopicPartition, int], committed: dict[int, int]) -> bool:
    async with log.reader(topic, isolation_level="read_committed") as consumer:
        consumer.pause(*[tp for tp in consumer.assignment() if tp not in ends])
        for tp in ends:
            consumer.seek(tp, committed.get(tp.partition, 0))
        found = await consumer.getmany(timeout_ms=POLL_MILLISECONDS)
        return not found and await reached(consumer, ends)
