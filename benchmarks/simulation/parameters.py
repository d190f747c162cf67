"""All that the model is told. Every number says its unit, and the command that measured it or where it is from.

"example" and "assumption" are what their names say: put your own there, or `--set NAME=VALUE`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

SIZES = "python -m benchmarks.simulation --measure: the sample conversations, in memory"
TRANSACTIONS = "python -m benchmarks.simulation --measure: 400 transactions on the embedded broker, two cores, busy"
SEGMENTER = "python -m benchmarks --only segmenter: CPU µs each; replaced by that of build/bench.json"
DEFAULT = "docs/settings.md: default"
ASSUMED = "assumption"
EXAMPLE = "example"


def known(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class Parameters:
    """`python -m benchmarks.simulation --parameters` prints them."""

    # the load
    peak_to_mean: float = known(2.0, "×", f"{ASSUMED}: the busiest hour beside the day's mean; at most 2")
    burst_factor: float = known(3.0, "×", f"{ASSUMED}: a burst beside the curve")
    burst_seconds: float = known(30, "s", ASSUMED)
    burst_every_seconds: float = known(600, "s", f"{ASSUMED}: mean distance of bursts")
    seconds_between_messages: float = known(10, "s", "afterword/dialogues.py: a turn of the replayed dialogues")
    messages_per_conversation: float = known(40, "", f"{ASSUMED}; 15 in the sample conversations")
    message_bytes: float = known(274, "bytes", f"{SIZES}; some 300 in benchmarks/load.py")
    replication_factor: float = known(3, "", "helm/afterword/values.yaml")
    retention_days: float = known(7, "days", "Kafka's default log.retention.hours")

    # episodes
    trigger: float = known(10, "messages", f"{DEFAULT} of AFTERWORD_EPISODES__TRIGGER")
    idle_seconds: float = known(300, "s", f"{DEFAULT} of AFTERWORD_EPISODES__IDLE_SECONDS")
    dedupe_window: float = known(1000, "messages", f"{DEFAULT} of AFTERWORD_EPISODES__DEDUPE_WINDOW")
    shift_chance: float = known(0.1, "", "benchmarks/load.py: every tenth message begins another topic")

    # the segmenter
    message_core_seconds: float = known(101e-6, "s", SEGMENTER)
    transaction_core_seconds: float = known(1.25e-3, "s", TRANSACTIONS)
    commit_seconds: float = known(3.5e-3, "s", f"{TRANSACTIONS}; median")
    commit_p99_seconds: float = known(39e-3, "s", f"{TRANSACTIONS}; quantile 0.99")
    linger_seconds: float = known(0.02, "s", f"{DEFAULT} of AFTERWORD_ENGINE__LINGER_MS")
    max_batch: float = known(2000, "messages", f"{DEFAULT} of AFTERWORD_ENGINE__MAX_BATCH")
    hop_seconds: float = known(0.004, "s", f"{ASSUMED}: from a producer's send to a consumer's hands, one topic")
    restart_seconds: float = known(13.0, "s", "docs/reliability.md: the longest stall of SIGTERM under load")
    recovery_rows_per_second: float = known(
        100_000, "/s", f"{ASSUMED}, the aim of `make bench`; build/bench.json: row memory"
    )
    changelog_bytes_per_message: float = known(676, "bytes", f"{SIZES}; each message a batch of its own")
    state_bytes_per_message: float = known(124, "bytes", f"{SIZES}; keys and values that stay, before compression")
    state_rows_per_message: float = known(2, "", SIZES)
    state_bytes_per_conversation: float = known(121, "bytes", SIZES)

    # the summarizer
    slots: float = known(8, "", f"{DEFAULT} of AFTERWORD_LLM__MAX_CONCURRENCY")
    in_flight: float = known(64, "episodes", f"{DEFAULT} of AFTERWORD_MAX_IN_FLIGHT")
    hands_per_slot: float = known(
        4, "", f"{ASSUMED}: episodes in hand for each slot; 0 leaves the default of in_flight"
    )
    episode_core_seconds: float = known(
        0.020, "s", "python -m benchmarks --only slots: CPU each with 128 of them, Qdrant in the process"
    )
    store_seconds: float = known(0.020, "s", f"{ASSUMED}: ten round trips to MongoDB, Qdrant and Kafka of 2 ms")

    # the LLM
    llm_seconds: float = known(3.0, "s", f"{EXAMPLE}: median of one call")
    llm_p99_seconds: float = known(12.0, "s", f"{EXAMPLE}: quantile 0.99 of one call")
    calls_per_episode: float = known(1.05, "", f"{ASSUMED}: some answers cannot be used")
    error_chance: float = known(0.005, "", f"{ASSUMED}: timeouts, 5xx")
    attempts: float = known(4, "", f"{DEFAULT} of AFTERWORD_LLM__ATTEMPTS")
    prompt_frame_tokens: float = known(557, "tokens", f"{SIZES}; instructions, overlap, summary so far")
    tokens_per_message: float = known(15, "tokens", SIZES)
    answer_tokens: float = known(210, "tokens", SIZES)
    requests_per_minute: float = known(10_000, "/min", f"{EXAMPLE} of a provider's limit")
    tokens_per_minute: float = known(10e6, "/min", f"{EXAMPLE} of a provider's limit")
    prompt_price: float = known(0.15, "$ per 10⁶ tokens", f"{EXAMPLE}: a small hosted model")
    answer_price: float = known(0.60, "$ per 10⁶ tokens", f"{EXAMPLE}: a small hosted model")

    # what is stored
    episode_frame_bytes: float = known(1352, "bytes", f"{SIZES}; with overlap")
    episode_bytes_per_message: float = known(176, "bytes", SIZES)
    summary_record_bytes: float = known(2050, "bytes", SIZES)
    mongo_message_bytes: float = known(408, "bytes", f"{SIZES}; BSON")
    mongo_episode_bytes: float = known(2155, "bytes", f"{SIZES}; BSON")
    mongo_conversation_bytes: float = known(1422, "bytes", f"{SIZES}; BSON, with its row of the rolling summary")
    mongo_disk_share: float = known(0.7, "", f"{ASSUMED}: WiredTiger with snappy and its indexes, beside BSON")
    mongo_writes_per_episode: float = known(5, "", "streams/summarizer/pipeline.py, with the kept reply")
    qdrant_payload_bytes: float = known(668, "bytes", SIZES)
    qdrant_sparse_bytes: float = known(229, "bytes", f"{SIZES}; both sparse vectors")
    dense_dimensions: float = known(768, "", f"{EXAMPLE}: nomic-embed-text; 0 without an embedder")

    # where one of a kind ends
    busy_share: float = known(0.5, "", f"{ASSUMED}: of a core at the peak, so that a backlog shrinks")
    slot_share: float = known(0.7, "", f"{ASSUMED}: of the slots at the peak")
    most_slots: float = known(128, "", "benchmarks/slots.py goes as far")
    archiver_messages_per_second: float = known(3000, "/s", f"{ASSUMED}; build/bench.json: row archiver")
    mongo_writes_per_second: float = known(10_000, "/s", f"{ASSUMED}: one primary, journalled")
    mongo_disk_bytes: float = known(2e12, "bytes", f"{ASSUMED}: of one replica set")
    qdrant_memory_bytes: float = known(64e9, "bytes", f"{ASSUMED}: of one node, dense vectors in memory")
    broker_bytes_per_second: float = known(50e6, "bytes/s", f"{ASSUMED}: written by one broker, replicas included")
    volume_bytes: float = known(10 * 2**30, "bytes", "helm/afterword/values.yaml: segmenter.persistence.size")
    segmenter_disk_bytes: float = known(1e12, "bytes", f"{ASSUMED}: the largest volume of one segmenter")
    recovery_seconds: float = known(600, "s", f"{ASSUMED}: a segmenter that lost its disk is back after this")
    default_partitions: float = known(8, "", f"{DEFAULT} of AFTERWORD_KAFKA__PARTITIONS")


class Parameter(NamedTuple):
    name: str
    value: float
    unit: str
    source: str


def listed(parameters: Parameters) -> Iterator[Parameter]:
    for one in fields(parameters):
        yield Parameter(one.name, getattr(parameters, one.name), one.metadata["unit"], one.metadata["source"])


def changed(parameters: Parameters, settings: Mapping[str, float]) -> Parameters:
    """Raises: ValueError that names what is no parameter."""
    unknown = sorted(settings.keys() - {one.name for one in fields(parameters)})
    if unknown:
        raise ValueError(f"no parameter of the model: {', '.join(unknown)}")
    return replace(parameters, **settings)
