"""Which part comes to its end first, when there is one of it, as it is set by default."""

from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.simulation.capacity import (
    need,
    seconds_of_slot,
)
from benchmarks.simulation.parameters import Parameters


class Ceiling(NamedTuple):
    """Messages a day at which `what` is used up, and what to turn."""

    messages_per_day: float
    what: str
    turn: str


@dataclass(frozen=True)
class Decade:
    messages_per_day: float
    ends: tuple[Ceiling, ...]
    """Between this load and ten times as much, the lowest first."""


PROBE = 1e6
"""Everything below is proportional to the load; this one is asked for."""


def ceilings(parameters: Parameters) -> list[Ceiling]:
    """The lowest first."""
    p = parameters
    one = need(PROBE, p)
    calls = one.episodes * seconds_of_slot(p) / p.slot_share
    episodes_core = one.episodes * p.episode_core_seconds / p.busy_share
    segmenter_core = one.messages * p.message_core_seconds / p.busy_share
    found = [
        (calls / p.slots, "the slots of one summarizer", "AFTERWORD_LLM__MAX_CONCURRENCY; then summarizer.replicas"),
        (
            calls / (p.slots * p.default_partitions),
            "as many summarizers as partitions, with the default's slots",
            "AFTERWORD_LLM__MAX_CONCURRENCY up to 128",
        ),
        (
            max(calls / p.most_slots, episodes_core) / p.default_partitions,
            "as many summarizers as partitions, with 128 slots",
            "AFTERWORD_KAFKA__PARTITIONS, chosen beforehand",
        ),
        (one.requests_per_minute / p.requests_per_minute, "the provider's requests a minute", PROVIDER),
        (one.tokens_per_minute / p.tokens_per_minute, "the provider's tokens a minute", PROVIDER),
        (episodes_core, "the core of one summarizer", "summarizer.replicas, up to the partitions"),
        (segmenter_core, "the core of one segmenter", "segmenter.replicas, up to the partitions"),
        (
            segmenter_core / p.default_partitions,
            "as many segmenters as partitions",
            "AFTERWORD_KAFKA__PARTITIONS, chosen beforehand",
        ),
        (
            one.state_bytes / p.volume_bytes,
            "the volume of one segmenter, after a year",
            "segmenter.persistence.size; segmenter.replicas; AFTERWORD_EPISODES__DEDUPE_WINDOW down",
        ),
        (
            one.recovery_seconds * one.segmenters / p.recovery_seconds,
            "recovery of one segmenter's lost disk in ten minutes, after a year",
            "segmenter.replicas; AFTERWORD_EPISODES__DEDUPE_WINDOW down; a new generation of topics",
        ),
        (one.messages / p.archiver_messages_per_second, "one archiver", "archiver.replicas"),
        (one.mongo_writes / p.mongo_writes_per_second, "the writes of one MongoDB primary", SHARD),
        (one.mongo_bytes / p.mongo_disk_bytes, "the disk of one replica set, after a year", SHARD),
        (
            one.qdrant_memory_bytes / p.qdrant_memory_bytes,
            "the memory of one Qdrant node, after a year",
            "a Qdrant cluster, or vectors on disk; a smaller AFTERWORD_EMBEDDER__MODEL, or none",
        ),
        (one.kafka_bytes_per_second / (3 * p.broker_bytes_per_second), "three brokers", "more brokers"),
    ]
    return sorted(Ceiling(PROBE / share, what, turn) for share, what, turn in found if share > 0)


PROVIDER = "a higher limit, a server of your own; AFTERWORD_EPISODES__TRIGGER up"
SHARD = "shard the collections by `_id`, hashed"


def decade(messages_per_day: float, parameters: Parameters) -> Decade:
    ends = [one for one in ceilings(parameters) if messages_per_day <= one.messages_per_day < 10 * messages_per_day]
    return Decade(messages_per_day, tuple(ends))
