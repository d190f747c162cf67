"""Reads a deployment in an order in which work in progress never looks like a loss, and judges it.

Before that it can wait until everything is consumed and summarized.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial

from aiokafka import AIOKafkaConsumer, TopicPartition

from afterword.operating.audit.evidence import (
    Circumstances,
    Consumed,
    Evidence,
    Indexed,
    Vanished,
    digest,
    open_evidence,
)
from afterword.operating.audit.expected import CLOCKS_APART_MS
from afterword.operating.audit.judge import judge
from afterword.operating.audit.report import EXAMPLES_NAMED, Missing, Report
from afterword.operating.audit.sources import (
    ReadIndex,
    SegmenterState,
    indexed_episodes,
    read_stores,
    take_current_conversation,
    take_current_episode,
    take_dead_letter,
    take_deletion,
    take_episode,
    take_message,
    take_summary,
)
from afterword.schemas.dead_letters import is_offset
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_ID, CE_TYPE, header
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import (
    POLL_MILLISECONDS,
    Log,
    ReadProgress,
    SharedProgress,
    Take,
    batches,
    open_log,
    reached,
)
from afterword.streams.segmenter.arrival import milliseconds
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.tasks import gather_or_cancel

INDEX_PAGE = 2000
"""Number of episodes that are looked up in the index at a time."""
POLL_SECONDS = 0.2


async def run(
    settings: Settings,
    wait_seconds: float = 0,
    index: ReadIndex = indexed_episodes,
    progress: ReadProgress = lambda *_: None,
) -> Report:
    """Audit a deployment.

    `wait_seconds` limits the wait until everything is consumed and every closed episode is summarized; 0 judges at
    once. The report's `missing` says what had not arrived by then. Pending messages are not waited for. `index` finds
    out which episodes are indexed. `progress` is called with what is being done, how much of it is done, and the total.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers), open_evidence() as evidence:
        async with open_log(settings.kafka) as log:
            missing = await until_summarised(log, settings.kafka, wait_seconds, progress) if wait_seconds else None
            circumstances = await _Reading(settings, log, await log.topics(), evidence, progress).everything(index)
        report = judge(evidence, circumstances)
    report.missing = missing
    return report


class _Reading:
    """Reads topics, consumer groups and stores into the tables.

    They are not read at one instant. The groups' offsets come first, then the segmenter's state, the ends of
    `episode.closed`, `summary.created` and `messages`, and finally the stores and those topics up to their ends.
    Messages only ever move in this direction.
    """

    def __init__(
        self, settings: Settings, log: Log, topics: set[str], evidence: Evidence, progress: ReadProgress
    ) -> None:
        episodes = settings.episodes
        self._settings = settings
        self._kafka: Kafka = settings.kafka
        self._log = log
        self._topics = topics
        self._evidence = evidence
        self._progress = progress
        self._circumstances = Circumstances(
            dedupe_window=episodes.dedupe_window,
            forget_after_ms=episodes.forget_after_ms,
            max_agents=episodes.max_agents if episodes.scope == "agent" else None,
        )

    async def everything(self, index: ReadIndex) -> Circumstances:
        """Read everything, and return what else the verdict depends on. Raises: TopicMissing."""
        if self._kafka.messages_topic not in self._topics:
            raise TopicMissing(topic=self._kafka.messages_topic)
        before = await self._state_of_work()
        await self._read_offsets()
        await self._read_state()
        await self._read_topics_and_stores()
        self._circumstances.quiet = before == await self._state_of_work()
        await self._read_index(index)
        retention, soon = self._settings.retention, datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)
        if before_messages := retention.messages_before(soon):  # by the clock of the worker that removes them
            self._circumstances.messages_before_ms = milliseconds(before_messages)
        if before_episodes := retention.episodes_before(soon):
            self._circumstances.episodes_before_ms = milliseconds(before_episodes)
        return self._circumstances

    async def _state_of_work(self) -> list[object]:
        kafka = self._kafka
        outputs = [kafka.episodes_topic, kafka.changelog(MESSAGES), kafka.changelog(CONVERSATIONS)]
        consumed = await self._log.committed(kafka.segmenter_id, kafka.messages_topic)
        return [consumed, *[await self._log.ends(topic) for topic in outputs if topic in self._topics]]

    async def _read_offsets(self) -> None:
        kafka, log = self._kafka, self._log
        for role, group, topic in (
            ("segmenter", kafka.segmenter_id, kafka.messages_topic),
            ("archiver", kafka.archiver_id, kafka.messages_topic),
            ("summarizer", kafka.summarizer_id, kafka.episodes_topic),
        ):
            for partition, offset in (await log.committed(group, topic)).items():
                self._evidence.add(Consumed(role, partition, offset))

    async def _read_state(self) -> None:
        """Read the changelogs one after the other, before all other topics; see `SegmenterState`.

        They are compacted, so what a changelog held at some moment can only be read then.
        """
        state = SegmenterState()
        for table in (MESSAGES, CONVERSATIONS):
            topic = self._kafka.changelog(table)
            if self._is_there(topic):
                await self._log.read(topic, partial(state.take, table), self._progress)
        for row in state.rows():
            self._evidence.add(row)

    async def _read_topics_and_stores(self) -> None:
        """Read the topics up to their current ends, and the stores at the same time.

        The stores may therefore have more than the topics show, but never less.
        """
        log, messages = self._log, self._kafka.messages_topic
        takes = {topic: take for topic, take in self._takes().items() if self._is_there(topic)}
        extent = await log.extent(list(takes))
        async with open_stores(self._settings) as stores:
            total = extent.size + await stores.messages.count_all()
            counted = SharedProgress("reading topics and stores", total, self._progress)
            await gather_or_cancel(
                log.read_all(extent, takes, counted.add), read_stores(stores, self._evidence, counted.add)
            )
        # edits and deletions that the stores may already have
        await log.read_all(extent.before(await log.extent([messages])), takes, counted.add)
        self._note_truncated(extent.truncated)

    def _takes(self) -> dict[str, Take]:
        """Return the function that reads each topic's records, in the order in which the topics' ends are queried.

        Messages come last, so that every message of an episode is among them. The compacted topics come after the
        events they were written with.
        """
        kafka, evidence = self._kafka, self._evidence
        messages, episodes = kafka.messages_topic, kafka.episodes_topic
        current = dict(zip(kafka.current_topics, (take_current_episode, take_current_conversation), strict=False))
        return {
            kafka.dead_letters(messages): partial(take_dead_letter, evidence, "message", messages),
            episodes: partial(take_episode, evidence),
            kafka.dead_letters(episodes): partial(take_dead_letter, evidence, "episode", episodes),
            kafka.summaries_topic: partial(take_summary, evidence),
            kafka.deletions_topic: partial(take_deletion, evidence),
            **{topic: partial(take, evidence) for topic, take in current.items()},
            messages: partial(take_message, evidence, redaction=self._settings.redaction.of_records()),
        }

    def _is_there(self, topic: str) -> bool:
        if topic not in self._topics:
            self._circumstances.notes.append(f"topic {topic} does not exist")
        return topic in self._topics

    def _note_truncated(self, topics: set[str]) -> None:
        kafka, found = self._kafka, self._circumstances
        found.messages_truncated = kafka.messages_topic in topics
        found.episodes_truncated = kafka.episodes_topic in topics
        found.summaries_truncated = kafka.summaries_topic in topics
        found.has_current = kafka.current_state and self._topics.issuperset(kafka.current_topics)
        for topic in (kafka.messages_topic, kafka.episodes_topic, kafka.summaries_topic):
            if topic in topics:
                found.notes.append(f"the oldest records of {topic} were deleted, so what depends on them is not judged")

    async def _read_index(self, index: ReadIndex) -> None:
        self._evidence.index()
        wanted = [name for (name,) in self._evidence.rows("SELECT DISTINCT episode_id FROM closed ORDER BY 1")]
        for start in range(0, max(1, len(wanted)), INDEX_PAGE):
            self._progress("reading the index", start, len(wanted))
            for episode in await index(self._settings, wanted[start : start + INDEX_PAGE]):
                self._evidence.add(Indexed(episode))
        self._evidence.index()
        missing = [
            name
            for (name,) in self._evidence.rows("""
            SELECT DISTINCT episode_id FROM closed JOIN stored_episode USING (episode_id)
            WHERE episode_id NOT IN (SELECT episode_id FROM indexed)
        """)
        ]
        if missing:
            await self._read_vanished(missing)

    async def _read_vanished(self, missing: list[str]) -> None:
        """Find out which of the episodes missing from the index were deleted since the stores were read."""
        async with open_stores(self._settings) as stores:
            for start in range(0, len(missing), INDEX_PAGE):
                versions = await stores.episodes.versions(missing[start : start + INDEX_PAGE])
                for episode, version in versions.items():
                    if version.ended:
                        self._evidence.add(Vanished(episode))


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
