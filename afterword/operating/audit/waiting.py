"""Waits until everything is consumed and summarized."""

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword.operating.audit.evidence import digest
from afterword.operating.audit.report import EXAMPLES_NAMED, Missing
from afterword.schemas.dead_letters import is_offset
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_ID, CE_TYPE, header
from afterword.streams.errors import TopicMissing
from afterword.streams.log_reader import POLL_MILLISECONDS, Log, ReadProgress, batches, reached
from afterword.streams.settings import Kafka

POLL_SECONDS = 0.2


async def until_summarised(
    log: Log, kafka: Kafka, seconds: float, progress: ReadProgress = lambda *_: None
) -> Missing | None:
    """Wait until `messages` is consumed and each closed episode is announced or dead-lettered.

    `progress` is called with the number of finished episodes and the total. Returns what had not arrived after
    `seconds`, or None if everything had. Raises: TopicMissing, TopicStalled.
    """
    outputs = (kafka.summaries_topic, kafka.deletions_topic, kafka.dead_letters(kafka.episodes_topic))
    topics = [kafka.episodes_topic, *outputs]
    existing = await log.topics()
    for topic in (kafka.messages_topic, *topics):
        if topic not in existing:
            raise TopicMissing(topic=topic)
    deadline = time.monotonic() + seconds
    async with log.reader(*topics, isolation_level="read_committed") as consumer:
        await consumer.seek_to_beginning()
        open_events = OpenEvents(kafka.episodes_topic)
        while True:
            # order matters: the episodes of what was consumed by now are among those that are read next
            segmented = await is_consumed(log, kafka.segmenter_id, kafka.messages_topic)
            archived = await is_consumed(log, kafka.archiver_id, kafka.messages_topic)
            await open_events.catch_up(log, consumer, topics)
            finished, left = open_events.finished, len(open_events.names)
            awaited = "summaries" if segmented and archived else "the archiver" if segmented else "the segmenter"
            progress(f"waiting for {awaited}", finished, finished + left)
            if segmented and archived and not left:
                return None
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(POLL_SECONDS)
        ends = await log.ends(kafka.messages_topic)
        return Missing(
            after_seconds=seconds,
            not_segmented=await log.left(kafka.segmenter_id, kafka.messages_topic, ends),
            not_archived=await log.left(kafka.archiver_id, kafka.messages_topic, ends),
            not_summarized=len(open_events.names),
            episodes=sorted(open_events.names.values())[:EXAMPLES_NAMED],
        )


class OpenEvents:
    """Closed episodes that are neither announced nor deleted nor dead-lettered.

    `ce_id` is the same on all topics: the episode's id and a revision. A later revision finishes an episode too,
    because a revision that is superseded before its announcement is never announced.
    """

    def __init__(self, episodes_topic: str) -> None:
        self.names: dict[bytes, str] = {}
        """Episode ids by their digests, which are smaller."""
        self._closed: dict[bytes, int] = {}
        self._done: dict[bytes, int] = {}
        """Latest revisions by episode."""
        self._episodes_topic = episodes_topic

    @property
    def finished(self) -> int:
        return len(self._closed) - len(self.names)

    async def catch_up(self, log: Log, consumer: AIOKafkaConsumer, topics: list[str]) -> None:
        """Read up to the current end of the topics. Raises: TopicStalled."""
        ends = {tp: end for topic in topics for tp, end in (await log.ends(topic)).items()}
        async for records in batches(consumer, ends):
            for record in records:
                if header(record.headers, CE_TYPE) not in (EPISODE_AMENDED, EPISODE_REDO):
                    self.take(record.topic, header(record.headers, CE_ID))

    def take(self, topic: str, event_id: str | None) -> None:
        name, _, revision = (event_id or "").rpartition(":")
        if not is_offset(revision):
            return
        key = digest(name)
        known = self._closed if topic == self._episodes_topic else self._done
        known[key] = max(known.get(key, 0), int(revision))
        if key in self._closed and self._closed[key] > self._done.get(key, 0):
            self.names[key] = name
        else:
            self.names.pop(key, None)


async def is_consumed(log: Log, group_id: str, topic: str) -> bool:
    """Return whether the group's offsets are past every record of the topic, ignoring transaction markers."""
    committed = await log.committed(group_id, topic)
    ends = await log.ends(topic)
    behind = {tp: end for tp, end in ends.items() if committed.get(tp.partition, 0) < end}
    return not behind or await _only_markers(log, topic, behind, committed)


async def _only_markers(log: Log, topic: str, ends: dict[TopicPartition, int], committed: dict[int, int]) -> bool:
    async with log.reader(topic, isolation_level="read_committed") as consumer:
        consumer.pause(*[tp for tp in consumer.assignment() if tp not in ends])
        for tp in ends:
            consumer.seek(tp, committed.get(tp.partition, 0))
        found = await consumer.getmany(timeout_ms=POLL_MILLISECONDS)
        return not found and await reached(consumer, ends)
