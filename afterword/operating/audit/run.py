"""Reads a deployment in an order in which work in progress never looks like a loss, and judges it."""

from datetime import UTC, datetime, timedelta
from functools import partial

from afterword.operating.audit.evidence import Circumstances, Consumed, Evidence, Indexed, Vanished, open_evidence
from afterword.operating.audit.expected import CLOCKS_APART_MS
from afterword.operating.audit.judge import judge
from afterword.operating.audit.report import Report
from afterword.operating.audit.segmenter_state import SegmenterState
from afterword.operating.audit.stores import ReadIndex, indexed_episodes, read_stores
from afterword.operating.audit.topics import (
    take_current_conversation,
    take_current_episode,
    take_dead_letter,
    take_deletion,
    take_episode,
    take_message,
    take_summary,
)
from afterword.operating.audit.waiting import until_summarised
from afterword.streams.errors import TopicMissing
from afterword.streams.kafka import broker_errors
from afterword.streams.log_reader import Log, ReadProgress, SharedProgress, Take, open_log
from afterword.streams.segmenter.arrival import milliseconds
from afterword.streams.segmenter.state import CONVERSATIONS, MESSAGES
from afterword.streams.settings import Kafka, Settings
from afterword.streams.stores.opening import open_stores
from afterword.streams.tasks import gather_or_cancel

INDEX_PAGE = 2000
"""Number of episodes that are looked up in the index at a time."""


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
