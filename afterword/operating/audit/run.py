"""Reads a deployment in an order in which work in progress never looks like a loss, and judges it.

Before that it can wait until everything is consumed and summarized.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from functools import partial

from aiokafka import AIOKafkaConsumer

from afterword.operating.audit.evidence import Circumstances, Evidence, digest, open_evidence
from afterword.operating.audit.expected import CLOCKS_APART_MS
from afterword.operating.audit.judge import judge
from afterword.operating.audit.report import EXAMPLES_NAMED, Missing, Report
from afterword.operating.audit.sources import ReadIndex, SegmenterState, TopicReader, indexed_episodes, read_stores
from afterword.schemas.dead_letters import is_offset
from afterword.schemas.episodes import EPISODE_AMENDED, EPISODE_REDO
from afterword.schemas.headers import CE_ID, CE_TYPE, header
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import Log, ReadProgress, SharedProgress, batches, open_log
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
            circumstances = await _read(settings, log, evidence, index, progress)
        report = judge(evidence, circumstances)
    report.missing = missing
    return report


async def _read(
    settings: Settings, log: Log, evidence: Evidence, index: ReadIndex, progress: ReadProgress
) -> Circumstances:
    """Read everything into the tables, and return what else the verdict depends on. Raises: TopicMissing.

    Topics, groups and stores are not read at one instant. The groups' offsets come first, then the segmenter's state,
    the ends of `episode.closed`, `summary.created` and `messages`, and finally the stores and those topics up to their
    ends. Messages only ever move in this direction, so the stores may have more than the topics show, but never less.
    """
    kafka, episodes, retention = settings.kafka, settings.episodes, settings.retention
    topics = await log.topics()
    if kafka.messages_topic not in topics:
        raise TopicMissing(topic=kafka.messages_topic)
    changelogs = {table: kafka.changelog(table) for table in (MESSAGES, CONVERSATIONS)}  # read in this order
    takes = TopicReader(evidence, kafka, settings.redaction.of_records()).takes()
    outputs = [topic for topic in (kafka.episodes_topic, *changelogs.values()) if topic in topics]

    async def work_done() -> tuple[object, object]:
        ends = (await log.extent(outputs)).ends if outputs else None
        return await log.committed(kafka.segmenter_id, kafka.messages_topic), ends

    before = await work_done()
    await _read_groups_and_state(
        kafka, log, evidence, [one for one in changelogs if changelogs[one] in topics], progress
    )
    extent = await log.extent([topic for topic in takes if topic in topics])
    async with open_stores(settings) as stores:
        total = extent.size + await stores.messages.count_all()
        counted = SharedProgress("reading topics and stores", total, progress)
        await gather_or_cancel(log.read_all(extent, takes, counted.add), read_stores(stores, evidence, counted.add))
    # edits and deletions that the stores may already have
    await log.read_all(extent.before(await log.extent([kafka.messages_topic])), takes, counted.add)
    quiet = before == await work_done()
    await _read_index(settings, evidence, index, progress)

    # A worker removes what has expired by its own clock.
    soon = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)
    oldest_message, oldest_episode = retention.messages_before(soon), retention.episodes_before(soon)
    notes = [f"topic {topic} does not exist" for topic in (*changelogs.values(), *takes) if topic not in topics]
    truncated = [
        topic
        for topic in (kafka.messages_topic, kafka.episodes_topic, kafka.summaries_topic)
        if topic in extent.truncated
    ]
    notes += [f"the oldest records of {one} were deleted, so what depends on them is not judged" for one in truncated]
    return Circumstances(
        dedupe_window=episodes.dedupe_window,
        forget_after_ms=episodes.forget_after_ms,
        max_agents=episodes.max_agents if episodes.scope == "agent" else None,
        messages_before_ms=milliseconds(oldest_message) if oldest_message else 0,
        episodes_before_ms=milliseconds(oldest_episode) if oldest_episode else 0,
        quiet=quiet,
        messages_truncated=kafka.messages_topic in truncated,
        episodes_truncated=kafka.episodes_topic in truncated,
        summaries_truncated=kafka.summaries_topic in truncated,
        has_current=kafka.current_state and topics.issuperset(kafka.current_topics),
        notes=notes,
    )


async def _read_groups_and_state(
    kafka: Kafka, log: Log, evidence: Evidence, tables: Sequence[str], progress: ReadProgress
) -> None:
    for role, group, topic in (
        ("segmenter", kafka.segmenter_id, kafka.messages_topic),
        ("archiver", kafka.archiver_id, kafka.messages_topic),
        ("summarizer", kafka.summarizer_id, kafka.episodes_topic),
    ):
        for partition, offset in (await log.committed(group, topic)).items():
            evidence.add("consumed", role, partition, offset)

    # The changelogs are compacted, so what one held at some moment can only be read then; see SegmenterState.
    state = SegmenterState()
    for table in tables:
        await log.read(kafka.changelog(table), partial(state.take, table), progress)
    for damage in state.damaged:
        evidence.add("damage", *damage)
    for waiting in state.pending():
        evidence.add("pending", *waiting)


async def _read_index(settings: Settings, evidence: Evidence, index: ReadIndex, progress: ReadProgress) -> None:
    evidence.flush()
    wanted = [name for (name,) in evidence.rows("SELECT DISTINCT episode_id FROM closed ORDER BY 1")]
    for start in range(0, max(1, len(wanted)), INDEX_PAGE):
        progress("reading the index", start, len(wanted))
        for episode in await index(settings, wanted[start : start + INDEX_PAGE]):
            evidence.add("indexed", episode)
    evidence.flush()
    not_indexed = evidence.rows("""
        SELECT DISTINCT episode_id FROM closed JOIN stored_episode USING (episode_id)
        WHERE episode_id NOT IN (SELECT episode_id FROM indexed)
    """)
    if missing := [name for (name,) in not_indexed]:
        async with open_stores(settings) as stores:
            for start in range(0, len(missing), INDEX_PAGE):
                versions = await stores.episodes.versions(missing[start : start + INDEX_PAGE])
                for episode, version in versions.items():
                    if version.ended:
                        evidence.add("vanished", episode)


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
    """Return whether the group has finished every record of the topic. Raises: TopicStalled."""
    async with aclosing(log.unread(group_id, topic, await log.ends(topic))) as unread:
        return await anext(unread, None) is None
