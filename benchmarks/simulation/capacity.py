"""The formulas: what a number of messages a day needs, of everything. Pure."""

import math
from dataclasses import dataclass

from benchmarks.simulation.arrivals import DAY_SECONDS
from benchmarks.simulation.parameters import Parameters
from benchmarks.simulation.provider import Lognormal

YEAR_DAYS = 365
VECTOR_OVERHEAD = 1.5
"""Memory of a dense vector with its graph, by Qdrant's own rule: number · dimension · 4 bytes · 1.5."""
CHANGELOG_RECORD_BYTES = 30
SLOT_STEPS = (8, 32, 128)
MANY_WORKERS = 16


@dataclass(frozen=True)
class Need:
    """Of one load. Rates are a second, at the top of the daily curve unless they say otherwise."""

    messages_per_day: float
    messages: float
    episodes: float
    partitions: int
    segmenters: int
    segmenter_core_share: float
    state_bytes: float
    """After a year, all segmenters together; before compression."""
    recovery_seconds: float
    """Of a segmenter that has lost its disk, after a year."""
    changelog_bytes_per_day: float
    kafka_bytes_per_second: float
    """Written, replicas included."""
    kafka_bytes: float
    """Kept: the retention of the topics, and the compacted changelogs after a year."""
    slots: int
    slots_per_summarizer: int
    summarizers: int
    in_flight: int
    """Of each partition: enough for the slots while others are being stored, or wait in their lanes."""
    archivers: int
    tokens_per_minute: float
    requests_per_minute: float
    tokens_per_day: float
    cost_per_day: float
    mongo_writes: float
    mongo_bytes: float
    """After a year, on disk."""
    qdrant_bytes: float
    """After a year; the dense vectors with their graph, the sparse ones, the payload."""
    qdrant_memory_bytes: float


def need(messages_per_day: float, parameters: Parameters) -> Need:
    p = parameters
    messages = messages_per_day / DAY_SECONDS * p.peak_to_mean
    episodes = messages / messages_per_episode(p)
    slots = math.ceil(episodes * seconds_of_slot(p) / p.slot_share)
    per_summarizer, summarizers = summarizers_for(slots, episodes, p)
    per_day = messages_per_day / messages_per_episode(p)
    conversations = messages_per_day / p.messages_per_conversation * YEAR_DAYS
    partitions = partitions_for(summarizers, messages, p)
    segmenters = segmenters_for(messages, partitions, conversations * state_bytes(p), p)
    written = kafka_bytes_per_message(p) * p.replication_factor
    return Need(
        messages_per_day=messages_per_day,
        messages=messages,
        episodes=episodes,
        partitions=partitions,
        segmenters=segmenters,
        segmenter_core_share=core_seconds(messages, partitions, p) / segmenters,
        state_bytes=conversations * state_bytes(p),
        recovery_seconds=conversations * state_rows(p) / segmenters / p.recovery_rows_per_second,
        changelog_bytes_per_day=messages_per_day * p.changelog_bytes_per_message,
        kafka_bytes_per_second=messages * written,
        kafka_bytes=p.replication_factor
        * (messages_per_day * p.retention_days * topic_bytes_per_message(p) + conversations * changelog_bytes(p)),
        slots=slots,
        slots_per_summarizer=per_summarizer,
        summarizers=summarizers,
        in_flight=in_flight_for(per_summarizer, partitions / summarizers, p),
        archivers=math.ceil(messages / (p.archiver_messages_per_second * p.slot_share)),
        tokens_per_minute=episodes * 60 * p.calls_per_episode * tokens_per_call(p),
        requests_per_minute=episodes * 60 * p.calls_per_episode,
        tokens_per_day=per_day * p.calls_per_episode * tokens_per_call(p),
        cost_per_day=per_day * cost_per_episode(p),
        mongo_writes=messages * 2 + episodes * p.mongo_writes_per_episode,
        mongo_bytes=mongo_bytes_per_message(p) * messages_per_day * YEAR_DAYS,
        qdrant_bytes=per_day * YEAR_DAYS * (p.qdrant_payload_bytes + p.qdrant_sparse_bytes + dense_bytes(p)),
        qdrant_memory_bytes=per_day * YEAR_DAYS * dense_bytes(p),
    )


def messages_per_episode(p: Parameters) -> float:
    """A conversation's groups of `trigger`, each cut where topics shift; the last one closes with silence."""
    whole, rest = divmod(p.messages_per_conversation, p.trigger)
    episodes = whole * (1 + (p.trigger - 1) * p.shift_chance)
    if rest:
        episodes += 1 + (rest - 1) * p.shift_chance
    return p.messages_per_conversation / episodes


def llm(p: Parameters) -> Lognormal:
    return Lognormal(p.llm_seconds, p.llm_p99_seconds)


def seconds_of_slot(p: Parameters) -> float:
    """For each episode."""
    return p.calls_per_episode * llm(p).mean / (1 - p.error_chance)


def prompt_tokens(p: Parameters) -> float:
    return p.prompt_frame_tokens + messages_per_episode(p) * p.tokens_per_message


def tokens_per_call(p: Parameters) -> float:
    return prompt_tokens(p) + p.answer_tokens


def cost_per_episode(p: Parameters) -> float:
    """Dollars."""
    return p.calls_per_episode * (prompt_tokens(p) * p.prompt_price + p.answer_tokens * p.answer_price) / 1e6


def core_seconds(messages: float, partitions: int, p: Parameters) -> float:
    """A second, of the segmenters' cores: each message, and each partition's transactions as often as they come round.

    An upper bound where the core is busy: batches grow then.
    """
    round_seconds = p.linger_seconds + p.commit_seconds + p.transaction_core_seconds
    transactions = min(messages, partitions / round_seconds)
    return messages * p.message_core_seconds + transactions * p.transaction_core_seconds


def segmenters_for(messages: float, partitions: int, state: float, p: Parameters) -> int:
    """By their cores, and by what their disks hold after a year; never more than there are partitions."""
    by_core = core_seconds(messages, partitions, p) / p.busy_share
    return min(partitions, max(1, math.ceil(by_core), math.ceil(state / p.segmenter_disk_bytes)))


def summarizers_for(slots: int, episodes: float, p: Parameters) -> tuple[int, int]:
    """Slots of each, and how many: few with many slots rather than the other way round, up to `most_slots`."""
    steps = [step for step in SLOT_STEPS if step <= p.most_slots]
    each = next((step for step in steps if slots <= step * MANY_WORKERS), steps[-1])
    by_core = math.ceil(episodes * p.episode_core_seconds / p.busy_share)
    return each, max(1, math.ceil(slots / each), by_core)


def in_flight_for(slots: int, partitions: float, p: Parameters) -> int:
    """The default, or `hands_per_slot` times the slots of a summarizer that has so many partitions."""
    return int(max(p.in_flight, math.ceil(p.hands_per_slot * slots / partitions)))


def partitions_for(summarizers: int, messages: float, p: Parameters) -> int:
    """Twice as many as workers, of the role that needs more of them; the same number for every topic."""
    segmenters = math.ceil(messages * p.message_core_seconds / p.busy_share)
    return int(max(p.default_partitions, 2 * summarizers, 2 * segmenters))


def remembered(p: Parameters) -> float:
    """Messages of a conversation whose ids stay."""
    return min(p.messages_per_conversation, p.dedupe_window)


def state_bytes(p: Parameters) -> float:
    """Of a conversation that is over: it stays, with the ids that it has seen."""
    return p.state_bytes_per_conversation + remembered(p) * p.state_bytes_per_message


def state_rows(p: Parameters) -> float:
    return 1 + remembered(p) * p.state_rows_per_message


def changelog_bytes(p: Parameters) -> float:
    """Of that conversation, compacted."""
    return state_bytes(p) + state_rows(p) * CHANGELOG_RECORD_BYTES


def topic_bytes_per_message(p: Parameters) -> float:
    """On `messages`, `episode.closed` and `summary.created`."""
    per_episode = p.episode_frame_bytes + p.summary_record_bytes
    return p.message_bytes + p.episode_bytes_per_message + per_episode / messages_per_episode(p)


def kafka_bytes_per_message(p: Parameters) -> float:
    """Written once, changelogs included."""
    return topic_bytes_per_message(p) + p.changelog_bytes_per_message


def mongo_bytes_per_message(p: Parameters) -> float:
    """On disk: its document, its share of its episode's and of its conversation's."""
    bson = (
        p.mongo_message_bytes
        + p.mongo_episode_bytes / messages_per_episode(p)
        + p.mongo_conversation_bytes / p.messages_per_conversation
    )
    return bson * p.mongo_disk_share


def dense_bytes(p: Parameters) -> float:
    return p.dense_dimensions * 4 * VECTOR_OVERHEAD
