"""Taking a snapshot of a deployment, in the order that `Snapshot` requires, and judging it."""

from datetime import UTC, datetime, timedelta
from functools import partial

from afterword.audit.judge import judge
from afterword.audit.log import Log, ReadProgress, SharedProgress, Take, open_log
from afterword.audit.messages import CLOCKS_APART_MS
from afterword.audit.report import Report
from afterword.audit.snapshot import (
    SegmenterState,
    Snapshot,
    milliseconds_if_known,
    take_dead_letter,
    take_deletion,
    take_episode,
    take_message,
    take_summary,
)
from afterword.audit.stores import IndexNotChecked, ReadIndex, indexed_episodes, read_stores
from afterword.audit.waiting import until_summarised
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka import broker_errors
from afterword.streams.runtime.collector import without_collector
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.together import together

INDEX_PAGE = 2000
"""Episodes that the index is asked for at a time."""


async def run(
    settings: Settings,
    wait_seconds: float = 0,
    index: ReadIndex = indexed_episodes,
    progress: ReadProgress = lambda *_: None,
) -> Report:
    """Audit a deployment.

    `wait_seconds`: maximum wait until everything is consumed and every closed episode is summarized; 0 judges at
    once. Pending messages are not waited for. `index`: reads which episodes are indexed. `progress` is called with what
    is done, how much of it, and how much there is.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled.
    """
    with broker_errors(settings.kafka.bootstrap_servers):
        async with open_log(settings.kafka) as log:
            notes = await until_summarised(log, settings.kafka, wait_seconds, progress)
            with (
                without_collector()
            ):  # millions of tuples; to go through them again and again takes a quarter of the time
                snapshot = await _take_snapshot(log, settings, index, progress)
                snapshot.notes[:0] = notes
                return judge(snapshot)


async def _take_snapshot(log: Log, settings: Settings, index: ReadIndex, progress: ReadProgress) -> Snapshot:
    topics = await log.topics()
    if settings.kafka.messages_topic not in topics:
        raise TopicMissing(topic=settings.kafka.messages_topic)
    episodes = settings.episodes
    max_agents = episodes.max_agents if episodes.scope == "agent" else None
    snapshot = Snapshot(
        dedupe_window=episodes.dedupe_window, forget_after_ms=episodes.forget_after_ms, max_agents=max_agents
    )
    before = await _state_of_work(log, settings.kafka, topics)
    await _read_offsets(log, settings.kafka, topics, snapshot)
    await _read_state(log, settings.kafka, topics, snapshot, progress)
    await _read_topics_and_stores(log, settings, topics, snapshot, progress)
    await _read_index(settings, index, snapshot, progress)
    soon = datetime.now(UTC) + timedelta(milliseconds=CLOCKS_APART_MS)  # by the clock of the worker that removes
    snapshot.messages_before_ms = milliseconds_if_known(settings.retention.messages_before(soon))
    snapshot.episodes_before_ms = milliseconds_if_known(settings.retention.episodes_before(soon))
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
    state = SegmenterState()
    for table, take in ((MESSAGES, state.take_body), (CONVERSATIONS, state.take_conversation)):
        if _is_there(kafka.changelog(table), topics, snapshot):
            await log.read(kafka.changelog(table), take, progress)
    snapshot.pending, snapshot.handed_over = state.pending(), state.handed_over()
    snapshot.damaged = state.damaged
    snapshot.quarantined = {damage.conversation_id for damage in state.damaged if damage.conversation_id is not None}


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
        dead: partial(take_dead_letter, snapshot.dead, kafka.messages_topic),
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
    try:
        for start in range(0, max(1, len(wanted)), INDEX_PAGE):
            progress("reading the index", start, len(wanted))
            found |= await index(settings, wanted[start : start + INDEX_PAGE])
        snapshot.indexed = found
    except IndexNotChecked as error:
        snapshot.notes.append(str(error))
