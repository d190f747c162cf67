"""Formulas of scaling: what a number of messages a day needs, and what runs out first; the tables of docs/scaling.md.

python -m benchmarks.scaling [--set NAME=VALUE] [--markdown FILE]
python -m benchmarks.scaling --parameters

Every number says its unit, and the command that measured it or where it is from. "example" and "assumption" are what
their names say: put your own there, with `--set`.
"""

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.suite import Finding, Line, as_markdown, show

LOADS = tuple(10.0**exponent for exponent in range(4, 10))
DAY_SECONDS = 86_400.0
YEAR_DAYS = 365
NORMAL_99 = 2.3263478740408408
"""Quantile 0.99 of the standard normal distribution."""
VECTOR_OVERHEAD = 1.5
"""Memory of a dense vector with its graph, by Qdrant's own rule: number · dimension · 4 bytes · 1.5."""
CHANGELOG_RECORD_BYTES = 30
SLOT_STEPS = (8, 32, 128)
MANY_WORKERS = 16


SIZES = "python -m benchmarks.costs: the sample conversations, in memory"
TRANSACTIONS = "python -m benchmarks.costs: 400 transactions on the embedded broker, two cores, busy"
SEGMENTER = "python -m benchmarks --only segmenter: CPU µs each"
DEFAULT = "docs/settings.md: default"
ASSUMED = "assumption"
EXAMPLE = "example"


def known(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class Parameters:
    """Every input of the formulas."""

    # the load
    peak_to_mean: float = known(2.0, "×", f"{ASSUMED}: the busiest hour beside the day's mean; at most 2")
    burst_factor: float = known(3.0, "×", f"{ASSUMED}: a burst beside the curve")
    burst_seconds: float = known(30, "s", ASSUMED)
    messages_per_conversation: float = known(40, "", f"{ASSUMED}; 15 in the sample conversations")
    message_bytes: float = known(274, "bytes", f"{SIZES}; some 300 in benchmarks/load.py")
    replication_factor: float = known(3, "", "helm/afterword/values.yaml")
    retention_days: float = known(7, "days", "Kafka's default log.retention.hours")

    # episodes
    trigger: float = known(10, "messages", f"{DEFAULT} of AFTERWORD_EPISODES__TRIGGER")
    dedupe_window: float = known(1000, "messages", f"{DEFAULT} of AFTERWORD_EPISODES__DEDUPE_WINDOW")
    shift_chance: float = known(0.1, "", "benchmarks/load.py: every tenth message begins another topic")

    # the segmenter
    message_core_seconds: float = known(101e-6, "s", SEGMENTER)
    transaction_core_seconds: float = known(1.25e-3, "s", TRANSACTIONS)
    commit_seconds: float = known(3.5e-3, "s", f"{TRANSACTIONS}; median")
    linger_seconds: float = known(0.02, "s", f"{DEFAULT} of AFTERWORD_ENGINE__LINGER_MS")
    recovery_rows_per_second: float = known(100_000, "/s", f"{ASSUMED}, the aim of `make bench`, row memory")
    changelog_bytes_per_message: float = known(698, "bytes", f"{SIZES}; each message a batch of its own")
    state_bytes_per_message: float = known(124, "bytes", f"{SIZES}; keys and values that stay, before compression")
    state_rows_per_message: float = known(2, "", SIZES)
    state_bytes_per_conversation: float = known(139, "bytes", SIZES)
    forget_after_days: float = known(30, "days", f"{DEFAULT} of AFTERWORD_EPISODES__FORGET_AFTER_DAYS; 0: never")
    forgotten_bytes_per_conversation: float = known(39, "bytes", f"{SIZES}; key and value of what stays")
    forgetting_bytes_per_message: float = known(138, "bytes", f"{SIZES}; tombstones in the changelogs")

    # the summarizer
    slots: float = known(8, "", f"{DEFAULT} of AFTERWORD_LLM__MAX_CONCURRENCY")
    in_flight: float = known(64, "episodes", "streams/app.py: by default, with 32 slots and more")
    hands_per_slot: float = known(
        4, "", f"{ASSUMED}: episodes in flight for each slot; 0 leaves the default of in_flight"
    )
    episode_core_seconds: float = known(
        0.020, "s", "python -m benchmarks --only slots: CPU each with 128 of them, Qdrant in the process"
    )

    # the LLM
    llm_seconds: float = known(3.0, "s", f"{EXAMPLE}: median of one call")
    llm_p99_seconds: float = known(12.0, "s", f"{EXAMPLE}: quantile 0.99 of one call")
    calls_per_episode: float = known(1.05, "", f"{ASSUMED}: some answers cannot be used")
    error_chance: float = known(0.005, "", f"{ASSUMED}: timeouts, 5xx")
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
    mongo_writes_per_episode: float = known(5, "", "streams/summarizer/pipeline.py; one is the cached answer's")
    qdrant_payload_bytes: float = known(668, "bytes", SIZES)
    qdrant_sparse_bytes: float = known(229, "bytes", f"{SIZES}; both sparse vectors")
    dense_dimensions: float = known(768, "", f"{EXAMPLE}: nomic-embed-text; 0 without an embedder")

    # limits of one worker, server or provider
    busy_share: float = known(0.5, "", f"{ASSUMED}: of a core at the peak, so that a backlog shrinks")
    slot_share: float = known(0.7, "", f"{ASSUMED}: of the slots at the peak")
    most_slots: float = known(128, "", "benchmarks/slots.py goes as far")
    archiver_messages_per_second: float = known(3000, "/s", f"{ASSUMED}; `make bench`: archiver")
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
    """Replace some values. Raises: ValueError, which names the unknown ones."""
    unknown = sorted(settings.keys() - {one.name for one in fields(parameters)})
    if unknown:
        raise ValueError(f"unknown parameters: {', '.join(unknown)}")
    return replace(parameters, **settings)


@dataclass(frozen=True)
class Need:
    """Requirements of one load. Rates are per second at the daily peak unless their names say otherwise."""

    messages_per_day: float
    messages: float
    episodes: float
    partitions: int
    segmenters: int
    segmenter_core_share: float
    state_bytes: float
    """State after a year, all segmenters together; before compression."""
    recovery_seconds: float
    """Recovery after a segmenter lost its disk, in the second year."""
    changelog_bytes_per_day: float
    kafka_bytes_per_second: float
    """Written, with replicas."""
    kafka_bytes: float
    """Kept for the retention time of the topics; compacted changelogs after a year."""
    slots: int
    slots_per_summarizer: int
    summarizers: int
    in_flight: int
    """Episodes of each partition: enough for the slots while others are stored or wait in their lanes."""
    burst_wait_seconds: float
    """Wait for a slot, of the last episode in a burst."""
    over_limit: float
    """Share of calls at the peak that the provider's limits refuse."""
    archivers: int
    tokens_per_minute: float
    requests_per_minute: float
    tokens_per_day: float
    cost_per_day: float
    mongo_writes: float
    mongo_bytes: float
    """Size after a year, on disk."""
    qdrant_bytes: float
    """Size after a year; the dense vectors with their graph, the sparse ones, the payload."""
    qdrant_memory_bytes: float


def need(messages_per_day: float, parameters: Parameters) -> Need:
    p = parameters
    messages = messages_per_day / DAY_SECONDS * p.peak_to_mean
    episodes = messages / messages_per_episode(p)
    slots = math.ceil(episodes * seconds_of_slot(p) / p.slot_share)
    per_summarizer, summarizers = summarizers_for(slots, episodes, p)
    per_day = messages_per_day / messages_per_episode(p)
    conversations = conversations_after_a_year(messages_per_day, p)
    partitions = partitions_for(summarizers, messages, p)
    segmenters = segmenters_for(messages, partitions, state_bytes(conversations, p), p)
    written = kafka_bytes_per_message(p) * p.replication_factor
    return Need(
        messages_per_day=messages_per_day,
        messages=messages,
        episodes=episodes,
        partitions=partitions,
        segmenters=segmenters,
        segmenter_core_share=core_seconds(messages, partitions, p) / segmenters,
        state_bytes=state_bytes(conversations, p),
        recovery_seconds=state_rows(conversations, p) / segmenters / p.recovery_rows_per_second,
        changelog_bytes_per_day=messages_per_day * changelog_bytes_per_message(p),
        kafka_bytes_per_second=messages * written,
        kafka_bytes=p.replication_factor
        * (messages_per_day * p.retention_days * topic_bytes_per_message(p) + changelog_bytes(conversations, p)),
        slots=slots,
        slots_per_summarizer=per_summarizer,
        summarizers=summarizers,
        in_flight=in_flight_for(per_summarizer, partitions / summarizers, p),
        burst_wait_seconds=burst_wait(episodes, per_summarizer * summarizers, p),
        over_limit=over_limit(episodes, p),
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
    """Mean size: a conversation closes in groups of `trigger`, each cut at topic shifts; the rest when idle."""
    whole, rest = divmod(p.messages_per_conversation, p.trigger)
    episodes = whole * (1 + (p.trigger - 1) * p.shift_chance)
    if rest:
        episodes += 1 + (rest - 1) * p.shift_chance
    return p.messages_per_conversation / episodes


def mean_call_seconds(p: Parameters) -> float:
    """Mean of a lognormal latency with the given median and quantile 0.99."""
    sigma = math.log(p.llm_p99_seconds / p.llm_seconds) / NORMAL_99
    return p.llm_seconds * math.exp(sigma**2 / 2)


def seconds_of_slot(p: Parameters) -> float:
    """Time that an episode holds a slot, over all its calls."""
    return p.calls_per_episode * mean_call_seconds(p) / (1 - p.error_chance)


def burst_wait(episodes: float, slots: int, p: Parameters) -> float:
    """Seconds that the last episode of a burst waits: what the slots could not take, divided by their rate.

    `episodes`: rate before the burst.
    """
    rate = slots / seconds_of_slot(p)
    return p.burst_seconds * max(0.0, p.burst_factor * episodes - rate) / rate


def over_limit(episodes: float, p: Parameters) -> float:
    """Share of calls that exceed the provider's requests or tokens per minute."""
    calls = episodes * 60 * p.calls_per_episode
    allowed = min(p.requests_per_minute, p.tokens_per_minute / tokens_per_call(p))
    return max(0.0, 1 - allowed / calls)


def prompt_tokens(p: Parameters) -> float:
    return p.prompt_frame_tokens + messages_per_episode(p) * p.tokens_per_message


def tokens_per_call(p: Parameters) -> float:
    return prompt_tokens(p) + p.answer_tokens


def cost_per_episode(p: Parameters) -> float:
    """Dollars."""
    return p.calls_per_episode * (prompt_tokens(p) * p.prompt_price + p.answer_tokens * p.answer_price) / 1e6


def core_seconds(messages: float, partitions: int, p: Parameters) -> float:
    """Seconds of the segmenters' cores per second, for messages and for transactions.

    An upper bound: batches grow when the core is busy.
    """
    round_seconds = p.linger_seconds + p.commit_seconds + p.transaction_core_seconds
    transactions = min(messages, partitions / round_seconds)
    return messages * p.message_core_seconds + transactions * p.transaction_core_seconds


def segmenters_for(messages: float, partitions: int, state: float, p: Parameters) -> int:
    """Count by core and by disk after a year, whichever is larger; at most one for each partition."""
    by_core = core_seconds(messages, partitions, p) / p.busy_share
    return min(partitions, max(1, math.ceil(by_core), math.ceil(state / p.segmenter_disk_bytes)))


def summarizers_for(slots: int, episodes: float, p: Parameters) -> tuple[int, int]:
    """Choose the slots of each and the count: few summarizers with many slots, up to `most_slots`."""
    steps = [step for step in SLOT_STEPS if step <= p.most_slots]
    each = next((step for step in steps if slots <= step * MANY_WORKERS), steps[-1])
    by_core = math.ceil(episodes * p.episode_core_seconds / p.busy_share)
    return each, max(1, math.ceil(slots / each), by_core)


def in_flight_for(slots: int, partitions: float, p: Parameters) -> int:
    """Limit per partition: the default, or `hands_per_slot` for each slot of a summarizer with so many partitions."""
    return int(max(p.in_flight, math.ceil(p.hands_per_slot * slots / partitions)))


def partitions_for(summarizers: int, messages: float, p: Parameters) -> int:
    """Twice the workers of the larger role; the same number for every topic."""
    segmenters = math.ceil(messages * p.message_core_seconds / p.busy_share)
    return int(max(p.default_partitions, 2 * summarizers, 2 * segmenters))


def remembered(p: Parameters) -> float:
    """Messages of a conversation whose ids are kept."""
    return min(p.messages_per_conversation, p.dedupe_window)


class Conversations(NamedTuple):
    """Conversations after a year."""

    whole: float
    """Those that are remembered with the ids that they have seen."""
    forgotten: float


def conversations_after_a_year(messages_per_day: float, p: Parameters) -> Conversations:
    a_day = messages_per_day / p.messages_per_conversation
    days = min(p.forget_after_days or YEAR_DAYS, YEAR_DAYS)
    return Conversations(a_day * days, a_day * (YEAR_DAYS - days))


def state_bytes(conversations: Conversations, p: Parameters) -> float:
    """State of conversations that are over: their rows, and the ids that they have seen until they are forgotten."""
    whole = p.state_bytes_per_conversation + remembered(p) * p.state_bytes_per_message
    return conversations.whole * whole + conversations.forgotten * p.forgotten_bytes_per_conversation


def state_rows(conversations: Conversations, p: Parameters) -> float:
    return conversations.whole * (1 + remembered(p) * p.state_rows_per_message) + conversations.forgotten


def changelog_bytes(conversations: Conversations, p: Parameters) -> float:
    """Changelog of conversations that are over, compacted."""
    return state_bytes(conversations, p) + state_rows(conversations, p) * CHANGELOG_RECORD_BYTES


def changelog_bytes_per_message(p: Parameters) -> float:
    """Bytes written to the changelogs, until and when its conversation is forgotten."""
    return p.changelog_bytes_per_message + bool(p.forget_after_days) * p.forgetting_bytes_per_message


def topic_bytes_per_message(p: Parameters) -> float:
    """Bytes on `messages`, `episode.closed` and `summary.created`."""
    per_episode = p.episode_frame_bytes + p.summary_record_bytes
    return p.message_bytes + p.episode_bytes_per_message + per_episode / messages_per_episode(p)


def kafka_bytes_per_message(p: Parameters) -> float:
    """Bytes written, changelogs included, before replication."""
    return topic_bytes_per_message(p) + changelog_bytes_per_message(p)


def mongo_bytes_per_message(p: Parameters) -> float:
    """Bytes on disk: its document, and its share of the documents of its episode and conversation."""
    bson = (
        p.mongo_message_bytes
        + p.mongo_episode_bytes / messages_per_episode(p)
        + p.mongo_conversation_bytes / p.messages_per_conversation
    )
    return bson * p.mongo_disk_share


def dense_bytes(p: Parameters) -> float:
    return p.dense_dimensions * 4 * VECTOR_OVERHEAD


class Ceiling(NamedTuple):
    """Messages a day at which `what` is used up, and the settings to change."""

    messages_per_day: float
    what: str
    turn: str


PROBE = 1e6
"""Load at which usage is computed; it is proportional to the load."""
PROVIDER = "a higher limit, a server of your own; AFTERWORD_EPISODES__TRIGGER up"
SHARD = "shard the collections by `_id`, hashed"


def ceilings(parameters: Parameters) -> list[Ceiling]:
    """Find where each resource is used up, the lowest first; one of each, configured as by default."""
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
            "segmenter.persistence.size; segmenter.replicas; AFTERWORD_EPISODES__FORGET_AFTER_DAYS down",
        ),
        (
            one.recovery_seconds * one.segmenters / p.recovery_seconds,
            "recovery of one segmenter's lost disk in ten minutes, after a year",
            "segmenter.replicas; AFTERWORD_EPISODES__FORGET_AFTER_DAYS down",
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


def ends(messages_per_day: float, parameters: Parameters) -> list[Ceiling]:
    """Select the ceilings between this load and ten times as much."""
    return [one for one in ceilings(parameters) if messages_per_day <= one.messages_per_day < 10 * messages_per_day]


PREFIXES = ("", "k", "M", "G", "T", "P")


def short(value: float, unit: str = "") -> str:
    """Format with two or three digits: 1.2 kB, 46 GB, 370."""
    step = 0
    while abs(value) >= 999.5 and step < len(PREFIXES) - 1:
        value, step = value / 1000, step + 1
    digits = 1 if 0 < abs(value) < 9.95 and (step or value % 1) else 0
    return f"{value:.{digits}f} {PREFIXES[step]}{unit}".rstrip()


def seconds(value: float) -> str:
    """Format with two or three digits, in the unit that fits."""
    steps = ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"))
    one, unit = next(((one, unit) for below, one, unit in steps if value < below), (86_400.0, "d"))
    digits = 1 if unit == "s" and value < 10 else 0
    return f"{value / one:.{digits}f} {unit}"


def load_of(messages_per_day: float) -> str:
    exponent = f"{messages_per_day:.0e}".split("e")[1]
    return f"10^{int(exponent)}"


Row = Mapping[str, str]


def workers(need: Need) -> Row:
    return {
        "messages/s at the peak": short(need.messages),
        "partitions": str(need.partitions),
        "segmenters": str(need.segmenters),
        "their cores busy": f"{min(1.0, need.segmenter_core_share):.0%}",
        "summarizers": str(need.summarizers),
        "slots of each": str(need.slots_per_summarizer),
        "in flight, a partition": str(need.in_flight),
        "archivers": str(need.archivers),
    }


def stores(need: Need) -> Row:
    return {
        "state": short(need.state_bytes, "B"),
        "rebuilt in": seconds(need.recovery_seconds),
        "changelog a day": short(need.changelog_bytes_per_day, "B"),
        "Kafka keeps": short(need.kafka_bytes, "B"),
        "Kafka writes": short(need.kafka_bytes_per_second, "B/s"),
        "MongoDB": short(need.mongo_bytes, "B"),
        "its writes/s": short(need.mongo_writes),
        "Qdrant": short(need.qdrant_bytes, "B"),
    }


def calls(need: Need) -> Row:
    return {
        "episodes/s at the peak": short(need.episodes),
        "slots": short(need.slots),
        "longest wait in a burst": seconds(need.burst_wait_seconds) if need.burst_wait_seconds else "none",
        "requests/min": short(need.requests_per_minute),
        "tokens/min": short(need.tokens_per_minute),
        "over the limits": f"{need.over_limit:.0%}",
        "tokens a day": short(need.tokens_per_day),
        "$ a day": short(need.cost_per_day),
    }


TABLES = {
    "messages a day → workers": workers,
    "messages a day → storage after a year; rates at the peak": stores,
    "messages a day → the LLM": calls,
}


def tables(p: Parameters) -> list[Finding]:
    """Every table of docs/scaling.md."""
    needs = [need(load, p) for load in LOADS]
    found = [
        Finding(title, [Line(load_of(one.messages_per_day), row(one)) for one in needs])
        for title, row in TABLES.items()
    ]
    return [*found, first_limits(p)]


def first_limits(p: Parameters) -> Finding:
    rows = [
        Line(
            load_of(load) if position == 0 else "",
            {"at": short(end.messages_per_day), "used up": end.what, "change": end.turn},
        )
        for load in LOADS
        for position, end in enumerate(ends(load, p))
    ]
    return Finding("messages a day → what is used up before ten times as many, with one of each", rows)


def setting(text: str) -> tuple[str, float]:
    """Parse NAME=VALUE. Raises: ValueError."""
    name, _, value = text.partition("=")
    return name, float(value)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description="From 10⁴ to 10⁹ a day.")
    parser.add_argument("--set", dest="settings", metavar="NAME=VALUE", type=setting, action="append", default=[])
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--parameters", action="store_true", help="print them, each with its source")
    given = parser.parse_args(arguments)
    try:
        parameters = changed(Parameters(), dict(given.settings))
    except ValueError as error:
        parser.error(str(error))
    if given.parameters:
        for one in listed(parameters):
            print(f"{one.name} = {one.value:g} {one.unit}\n    {one.source}")
        return
    found = tables(parameters)
    for one in found:
        show(one, Console(width=160))
    if given.markdown:
        given.markdown.write_text("\n".join(map(as_markdown, found)))


if __name__ == "__main__":
    main()
