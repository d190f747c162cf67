"""Reads a deployment in an order in which work in progress never looks like a loss, and judges it.

Before that it can wait until the workers have finished what is on their topics.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial

from afterword.operating.audit.evidence import Circumstances, Evidence, open_evidence
from afterword.operating.audit.expected import CLOCKS_APART_MS
from afterword.operating.audit.judge import Report, judge
from afterword.operating.audit.sources import SegmenterState, TopicReader, read_stores
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka.clients import broker_errors
from afterword.streams.kafka.log_reader import Log, ReadProgress, open_log
from afterword.streams.segmenter.arrival import milliseconds
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.opening import Stores, open_stores
from afterword.streams.tasks import gather_or_cancel

INDEX_PAGE = 2000
"""Number of episodes that are looked up in the index at a time."""
POLL_SECONDS = 0.2


async def run(settings: Settings, wait_seconds: float = 0, progress: ReadProgress = lambda *_: None) -> Report:
    """Audit a deployment.

    `wait_seconds` limits the wait until the workers have finished what is on their topics; 0 judges at once. The
    report's `missing` says what was left by then. Pending messages are not waited for. `progress` is called with what
    is being done, how much of it is done, and the total.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled, NoRoom.
    """
    with broker_errors(settings.kafka.bootstrap_servers), open_evidence() as evidence:
        async with open_log(settings.kafka) as log:
            topics = await log.topics()
            if settings.kafka.messages_topic not in topics:
                raise TopicMissing(topic=settings.kafka.messages_topic)
            missing = await until_finished(log, settings.kafka, wait_seconds, progress) if wait_seconds else None
            circumstances = await _read(settings, log, topics, evidence, progress)
        report = judge(evidence, circumstances)
    report.missing = missing
    return report


async def _read(
    settings: Settings, log: Log, topics: set[str], evidence: Evidence, progress: ReadProgress
) -> Circumstances:
    """Read everything into the tables, and return what else the verdict depends on.

    Topics, groups and stores are not read at one instant. The groups' offsets come first, then the segmenter's state,
    the ends of `episode.closed`, `summary.created` and `messages`, and finally the stores and those topics up to their
    ends. Messages only ever move in this direction, so the stores may have more than the topics show, but never less.
    """
    kafka, episodes, retention = settings.kafka, settings.episodes, settings.retention
    changelogs = {table: kafka.changelog(table) for table in (MESSAGES, CONVERSATIONS)}  # read in this order
    takes = TopicReader(evidence, kafka, settings.redaction.of_records()).takes()
    outputs = [topic for topic in (kafka.episodes_topic, *changelogs.values()) if topic in topics]

    async def work_done() -> tuple[object, object]:
        ends = (await log.extent(outputs)).ends if outputs else None
        return await log.committed(kafka.segmenter_id, kafka.messages_topic), ends

    before = await work_done()
    for role, (group, topic) in inputs_of(kafka).items():
        for partition, offset in (await log.committed(group, topic)).items():
            evidence.add("consumed", role, partition, offset)
    # The changelogs are compacted, so what one held at some moment can only be read then; see SegmenterState.
    state = SegmenterState()
    for table, changelog in changelogs.items():
        if changelog in topics:
            await log.read(changelog, partial(state.take, table), progress)
    state.add_to(evidence)
    extent = await log.extent([topic for topic in takes if topic in topics])
    async with open_stores(settings) as stores:
        what = "reading topics and stores"
        await gather_or_cancel(log.read_all(extent, takes, what, progress), read_stores(stores, evidence))
        # edits and deletions that the stores may already have
        await log.read_all(extent.before(await log.extent([kafka.messages_topic])), takes, what, progress)
        quiet = before == await work_done()
        await _read_index(stores, evidence, progress)

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


async def _read_index(stores: Stores, evidence: Evidence, progress: ReadProgress) -> None:
    wanted = [name for (name,) in evidence.rows("SELECT DISTINCT episode_id FROM closed ORDER BY 1")]
    for start in range(0, len(wanted), INDEX_PAGE):
        progress("reading the index", start, len(wanted))
        for episode in await stores.index.revisions(wanted[start : start + INDEX_PAGE]):
            evidence.add("indexed", episode)
    not_indexed = evidence.rows("""
        SELECT DISTINCT episode_id FROM closed JOIN stored_episode USING (episode_id)
        WHERE episode_id NOT IN (SELECT episode_id FROM indexed)
    """)
    missing = [name for (name,) in not_indexed]
    for start in range(0, len(missing), INDEX_PAGE):  # they may have been deleted since the stores were read
        versions = await stores.episodes.versions(missing[start : start + INDEX_PAGE])
        for episode, version in versions.items():
            if version.ended:
                evidence.add("deleted_episode", episode, version.ended == "expired")


async def until_finished(log: Log, kafka: Kafka, seconds: float, progress: ReadProgress) -> dict[str, int] | None:
    """Wait until the workers have finished what is on their topics.

    Returns how many records each has left after `seconds`, or None if all have finished. Raises: TopicStalled.
    """
    deadline, inputs = time.monotonic() + seconds, inputs_of(kafka)
    for role in (*inputs, "summarizer"):  # again, because timers have closed more episodes meanwhile
        group, topic = inputs[role]
        ends, most = await log.ends(topic), 0
        while left := await log.left(group, topic, ends):
            most = max(most, left)
            progress(f"waiting for the {role}", most - left, most)
            if time.monotonic() > deadline:
                return {role: await log.left(*one, await log.ends(one[1])) for role, one in inputs.items()}
            await asyncio.sleep(POLL_SECONDS)
    return None


def inputs_of(kafka: Kafka) -> dict[str, tuple[str, str]]:
    """Return the group and the input topic of each worker. The summarizer reads the topic that the segmenter writes."""
    return {
        "segmenter": (kafka.segmenter_id, kafka.messages_topic),
        "archiver": (kafka.archiver_id, kafka.messages_topic),
        "summarizer": (kafka.summarizer_id, kafka.episodes_topic),
    }
