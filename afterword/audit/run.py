"""Taking a snapshot of a deployment, in the order that `Snapshot` requires, and judging it."""

import math
from datetime import UTC, datetime, timedelta
from functools import partial

from afterword.audit.judge import judge
from afterword.audit.messages import CLOCKS_APART_MS
from afterword.audit.parts import Parts
from afterword.audit.report import Report
from afterword.audit.snapshot import (
    Snapshot,
    milliseconds_if_known,
    take_dead_letter,
    take_deletion,
    take_episode,
    take_message,
    take_rejected_message,
    take_state,
    take_summary,
)
from afterword.audit.stores import ReadIndex, indexed_episodes, read_stores
from afterword.audit.waiting import until_summarised
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka import broker_errors
from afterword.streams.log_reader import Log, ReadProgress, SharedProgress, Take, open_log
from afterword.streams.runtime.collector import without_collector
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES, TABLES
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.together import together

INDEX_PAGE = 2000
"""Episodes that the index is asked for at a time."""
FACTS_IN_MEMORY = 300_000
"""Facts that are judged at a time: a message has two and a fifth, and takes some 2 kB while it is judged."""
ROWS_OF_A_MESSAGE = 4
"""Records that a message leaves in the changelogs until they are compacted, of which one is a fact."""


async def run(
    settings: Settings,
    wait_seconds: float = 0,
    index: ReadIndex = indexed_episodes,
    progress: ReadProgress = lambda *_: None,
    facts_in_memory: int = FACTS_IN_MEMORY,
) -> Report:
    """Audit a deployment.

    `wait_seconds`: maximum wait until everything is consumed and every closed episode is summarized; 0 judges at
    once. The report's `missing` says what had not arrived by then. Pending messages are not waited for. `index`: reads
    which episodes are indexed. `progress` is called with what is done, how much of it, and how much there is.
    `facts_in_memory`: about as many records and documents are judged at a time, or those of one conversation; the
    others wait in a temporary file.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers):
        async with open_log(settings.kafka) as log:
            missing = await until_summarised(log, settings.kafka, wait_seconds, progress) if wait_seconds else None
            topics = await log.topics()
            if settings.kafka.messages_topic not in topics:
                raise TopicMissing(topic=settings.kafka.messages_topic)
            count = await _count_parts(log, settings, topics, facts_in_memory)
            # of one part all is in memory, millions of tuples: to go through them again and again takes a quarter of it
            with without_collector() if count == 1 else Parts(count) as parts:
                snapshot = await _take_snapshot(log, settings, topics, parts, progress)
                report = await _judge(settings, snapshot, index, progress)
        report.missing = missing
        return report


async def _count_parts(log: Log, settings: Settings, topics: set[str], facts_in_memory: int) -> int:
    """Return how many parts it takes, by what topics and stores have now: one, if all fits into memory."""
    kafka = settings.kafka
    changelogs = [kafka.changelog(table) for table in TABLES]
    others = [kafka.messages_topic, kafka.episodes_topic, kafka.summaries_topic, kafka.deletions_topic]
    extent = await log.extent([topic for topic in (*changelogs, *others) if topic in topics])
    async with open_stores(settings) as stores:
        documents = await stores.episodes.count_all() + await stores.messages.count_all()
    records, rows = extent.of(others).size, extent.of(changelogs).size
    facts = max(records + documents, rows // ROWS_OF_A_MESSAGE)
    count = math.ceil(facts / facts_in_memory)
    return max(1, count)


async def _judge(settings: Settings, snapshot: Snapshot, index: ReadIndex, progress: ReadProgress) -> Report:
    report = Report()
    for number in snapshot.numbers():
        with without_collector():
            report.add(await _judge_part(settings, snapshot.part(number), index, progress))
    return report


async def _judge_part(settings: Settings, part: Snapshot, index: ReadIndex, progress: ReadProgress) -> Report:
    await _read_index(settings, index, part, progress)
    soon = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)  # by the clock of the worker that removes
    part.messages_before_ms = milliseconds_if_known(settings.retention.messages_before(soon))
    part.episodes_before_ms = milliseconds_if_known(settings.retention.episodes_before(soon))
    return judge(part)


async def _take_snapshot(
    log: Log, settings: Settings, topics: set[str], parts: Parts | None, progress: ReadProgress
) -> Snapshot:
    episodes = settings.episodes
    max_agents = episodes.max_agents if episodes.scope == "agent" else None
    snapshot = Snapshot(
        dedupe_window=episodes.dedupe_window,
        forget_after_ms=episodes.forget_after_ms,
        max_agents=max_agents,
        parts=parts,
    )
    before = await _state_of_work(log, settings.kafka, topics)
    await _read_offsets(log, settings.kafka, topics, snapshot)
    await _read_state(log, settings.kafka, topics, snapshot, progress)
    await _read_topics_and_stores(log, settings, topics, snapshot, progress)
    snapshot.quiet = before == await _state_of_work(log, settings.kafka, topics)
    return snapshot


async def _state_of_work(log: Log, kafka: Kafka, topics: set[str]) -> list[object]:
    """Offsets that change when something is consumed or closed."""
    outputs = [kafka.episodes_topic, kafka.changelog(MESSAGES), kafka.changelog(CONVERSATIONS)]
    consumed = await log.committed(kafka.segmenter_id, kafka.messages_topic)
    return [consumed, *[await log.ends(topic) for topic in outputs if topic in topics]]


async def _read_offsets(log: Log, kafka: Kafka, topics: set[str], snapshot: Snapshot) -> None:
    snapshot.consumed = await log.committed(kafka.segmenter_id, kafka.messages_topic)
    snapshot.archived_to = await log.committed(kafka.archiver_id, kafka.messages_topic)
    snapshot.summarized_to = await log.committed(kafka.summarizer_id, kafka.episodes_topic)
    if kafka.retry_topic in topics:
        handled = await log.committed(kafka.summarizer_id, kafka.retry_topic)
        ends = await log.ends(kafka.retry_topic)
        snapshot.retries_wait = any(end > handled.get(source.partition, 0) for source, end in ends.items())


async def _read_state(log: Log, kafka: Kafka, topics: set[str], snapshot: Snapshot, progress: ReadProgress) -> None:
    """Read the changelogs one after the other, before all other topics: see `SegmenterState`.

    They are compacted: what a changelog had at some moment can be read only then.
    """
    for table in (MESSAGES, CONVERSATIONS):
        if _is_there(kafka.changelog(table), topics, snapshot):
            await log.read(kafka.changelog(table), partial(take_state, snapshot, table), progress)
    snapshot.settle()


async def _read_topics_and_stores(
    log: Log, settings: Settings, topics: set[str], snapshot: Snapshot, progress: ReadProgress
) -> None:
    """Read the topics to where they end by now, and the stores, at the same time.

    Stores may then have more than the topics tell of, and never less.
    """
    takes = {topic: take for topic, take in _takes(settings, snapshot).items() if _is_there(topic, topics, snapshot)}
    extent = await log.extent(list(takes))
    async with open_stores(settings) as stores:
        total = extent.size + await stores.messages.count_all()
        counted = SharedProgress("reading topics and stores", total, progress)
        await together(log.read_all(extent, takes, counted.add), read_stores(stores, snapshot, counted.add))
    # edits and deletions that the stores may have by now
    await log.read_all(extent.before(await log.extent([settings.kafka.messages_topic])), takes, counted.add)
    _note_truncated(extent.truncated, settings.kafka, snapshot)


def _takes(settings: Settings, snapshot: Snapshot) -> dict[str, Take]:
    """Return what takes the records of each topic, in the order in which their ends are asked for.

    The messages come last: so each message of an episode is among them.
    """
    kafka = settings.kafka
    dead, dead_episodes = kafka.dead_letters(kafka.messages_topic), kafka.dead_letters(kafka.episodes_topic)
    return {
        dead: partial(take_rejected_message, snapshot, kafka.messages_topic),
        kafka.episodes_topic: partial(take_episode, snapshot),
        dead_episodes: partial(take_dead_letter, snapshot.dead_episodes, kafka.episodes_topic),
        kafka.summaries_topic: partial(take_summary, snapshot),
        kafka.deletions_topic: partial(take_deletion, snapshot),
        kafka.messages_topic: partial(take_message, snapshot, redaction=settings.redaction.of_records()),
    }


def _is_there(topic: str, topics: set[str], snapshot: Snapshot) -> bool:
    if topic not in topics:
        snapshot.notes.append(f"there is no topic {topic}")
    return topic in topics


def _note_truncated(topics: set[str], kafka: Kafka, snapshot: Snapshot) -> None:
    names = {kafka.messages_topic: "messages", kafka.episodes_topic: "episodes", kafka.summaries_topic: "summaries"}
    for topic, name in names.items():
        if topic in topics:
            snapshot.truncated.add(name)
            snapshot.notes.append(f"the oldest records of {topic} were deleted: what depends on them is not judged")


async def _read_index(settings: Settings, index: ReadIndex, snapshot: Snapshot, progress: ReadProgress) -> None:
    wanted, found = sorted({episode.episode_id for episode in snapshot.closed}), set[str]()
    for start in range(0, max(1, len(wanted)), INDEX_PAGE):
        progress("reading the index", start, len(wanted))
        found |= await index(settings, wanted[start : start + INDEX_PAGE])
    snapshot.indexed = found
    await _read_removed(settings, [one for one in wanted if one in snapshot.stored and one not in found], snapshot)


async def _read_removed(settings: Settings, missing: list[str], snapshot: Snapshot) -> None:
    """Look up which of the episodes that are not in the index were deleted since the stores were read."""
    if missing:
        async with open_stores(settings) as stores:
            for start in range(0, len(missing), INDEX_PAGE):
                versions = await stores.episodes.versions(missing[start : start + INDEX_PAGE])
                snapshot.removed |= {episode_id for episode_id, version in versions.items() if version.ended}
