"""One look at everything, in the order that `Facts` asks for."""

from functools import partial

from aiokafka.errors import KafkaError

from afterword.audit.facts import Facts
from afterword.audit.index import IndexNotChecked, IndexReader, indexed_episodes
from afterword.audit.judge import judge
from afterword.audit.log import Log, Take, opened
from afterword.audit.pending import State
from afterword.audit.records import take_dead_letter, take_episode, take_message, take_summary
from afterword.audit.report import Report
from afterword.audit.stores import read_stores
from afterword.audit.waiting import until_summarised
from afterword.streams.errors import BrokerUnavailable, TopicMissing
from afterword.streams.segmenter.tables import CONVERSATIONS, MESSAGES
from afterword.streams.settings import Kafka, Settings


async def run(settings: Settings, wait_seconds: float = 0, index: IndexReader = indexed_episodes) -> Report:
    """Audits a deployment.

    `wait_seconds`: how long to wait first until everything is consumed and every closed episode summarised; 0 judges
    at once. Pending messages are not waited for. `index`: who is asked for the points, when not Qdrant itself.

    Raises: BrokerUnavailable, StoreUnavailable, TopicMissing, TopicStalled.
    """
    try:
        async with opened(settings.kafka) as log:
            notes = await until_summarised(log, settings.kafka, wait_seconds)
            facts = await _look(log, settings, index)
    except KafkaError as error:
        raise BrokerUnavailable(servers=settings.kafka.bootstrap_servers, problem=str(error)) from error
    facts.notes[:0] = notes
    return judge(facts)


async def _look(log: Log, settings: Settings, index: IndexReader) -> Facts:
    topics = await log.topics()
    if settings.kafka.messages_topic not in topics:
        raise TopicMissing(topic=settings.kafka.messages_topic)
    episodes = settings.episodes
    max_agents = episodes.max_agents if episodes.scope == "agent" else None
    facts = Facts(dedupe_window=episodes.dedupe_window, max_agents=max_agents)
    before = await _state_of_work(log, settings.kafka, topics)
    await _read_offsets(log, settings.kafka, facts)
    await _read_topics(log, settings.kafka, topics, facts)
    await read_stores(settings.mongo, facts)
    await _read_index(settings, index, facts)
    facts.quiet = before == await _state_of_work(log, settings.kafka, topics)
    return facts


async def _state_of_work(log: Log, kafka: Kafka, topics: set[str]) -> list[object]:
    """Whatever differs when something was consumed or closed."""
    outputs = [kafka.episodes_topic, kafka.changelog(MESSAGES), kafka.changelog(CONVERSATIONS)]
    consumed = await log.committed(kafka.segmenter_id, kafka.messages_topic)
    return [consumed, *[await log.ends(topic) for topic in outputs if topic in topics]]


async def _read_offsets(log: Log, kafka: Kafka, facts: Facts) -> None:
    facts.consumed = await log.committed(kafka.segmenter_id, kafka.messages_topic)
    facts.archived_to = await log.committed(kafka.archiver_id, kafka.messages_topic)
    facts.summarized_to = await log.committed(kafka.summarizer_id, kafka.episodes_topic)


async def _read_topics(log: Log, kafka: Kafka, topics: set[str], facts: Facts) -> None:
    state = State()
    readings: dict[str, Take] = {
        kafka.messages_topic: partial(take_message, facts),
        kafka.changelog(MESSAGES): state.take_body,
        kafka.changelog(CONVERSATIONS): state.take_conversation,
        kafka.dead_letters(kafka.messages_topic): partial(take_dead_letter, facts.dead, kafka.messages_topic),
        kafka.episodes_topic: partial(take_episode, facts),
        kafka.dead_letters(kafka.episodes_topic): partial(take_dead_letter, facts.dead_episodes, kafka.episodes_topic),
        kafka.summaries_topic: partial(take_summary, facts),
    }
    names = {kafka.messages_topic: "messages", kafka.episodes_topic: "episodes", kafka.summaries_topic: "summaries"}
    for topic, take in readings.items():
        if topic not in topics:
            facts.notes.append(f"there is no topic {topic}")
        elif await log.read(topic, take) and topic in names:
            facts.truncated.add(names[topic])
            facts.notes.append(f"the oldest records of {topic} are gone: what depends on them is not judged")
    facts.pending, facts.handed_over = state.pending(), state.handed_over()


async def _read_index(settings: Settings, index: IndexReader, facts: Facts) -> None:
    try:
        facts.indexed = await index(settings, sorted({episode.episode_id for episode in facts.closed}))
    except IndexNotChecked as error:
        facts.notes.append(str(error))
