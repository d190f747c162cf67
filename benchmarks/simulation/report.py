"""What the model found, as the tables of the benchmarks."""

from collections.abc import Sequence

from benchmarks.simulation.bottlenecks import Decade
from benchmarks.simulation.capacity import Need
from benchmarks.simulation.cell import Seen
from benchmarks.simulation.validation import Compared
from benchmarks.suite import Finding, Line

PREFIXES = ("", "k", "M", "G", "T", "P")


def short(value: float, unit: str = "") -> str:
    """Two or three digits: 1.2 kB, 46 GB, 370."""
    step = 0
    while abs(value) >= 999.5 and step < len(PREFIXES) - 1:
        value, step = value / 1000, step + 1
    digits = 1 if 0 < abs(value) < 9.95 and (step or value % 1) else 0
    return f"{value:.{digits}f} {PREFIXES[step]}{unit}".rstrip()


def seconds(value: float) -> str:
    """Two or three digits, in the unit that fits."""
    steps = ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"))
    one, unit = next(((one, unit) for below, one, unit in steps if value < below), (86_400.0, "d"))
    digits = 1 if unit == "s" and value < 10 else 0
    return f"{value / one:.{digits}f} {unit}"


def load_of(messages_per_day: float) -> str:
    exponent = f"{messages_per_day:.0e}".split("e")[1]
    return f"10^{int(exponent)}"


def validated(compared: Sequence[Compared]) -> Finding:
    rows = [
        Line(one.what, {"measured": _plain(one.measured, one.unit), "model": _plain(one.model, one.unit)}, one.ratio)
        for one in compared
    ]
    return Finding("the model beside what was measured; ratio: model to measured", rows)


def _plain(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}"


def workers(needs: Sequence[Need]) -> Finding:
    rows = [
        Line(
            load_of(need.messages_per_day),
            {
                "messages/s at the peak": short(need.messages),
                "partitions": str(need.partitions),
                "segmenters": str(need.segmenters),
                "their cores busy": f"{min(1.0, need.segmenter_core_share):.0%}",
                "summarizers": str(need.summarizers),
                "slots of each": str(need.slots_per_summarizer),
                "in flight, a partition": str(need.in_flight),
                "archivers": str(need.archivers),
            },
        )
        for need in needs
    ]
    return Finding("messages a day → workers", rows)


def stores(needs: Sequence[Need]) -> Finding:
    rows = [
        Line(
            load_of(need.messages_per_day),
            {
                "state": short(need.state_bytes, "B"),
                "rebuilt in": seconds(need.recovery_seconds),
                "changelog a day": short(need.changelog_bytes_per_day, "B"),
                "Kafka keeps": short(need.kafka_bytes, "B"),
                "Kafka writes": short(need.kafka_bytes_per_second, "B/s"),
                "MongoDB": short(need.mongo_bytes, "B"),
                "its writes/s": short(need.mongo_writes),
                "Qdrant": short(need.qdrant_bytes, "B"),
            },
        )
        for need in needs
    ]
    return Finding("messages a day → what is stored, after a year; rates at the peak", rows)


def calls(needs: Sequence[Need]) -> Finding:
    rows = [
        Line(
            load_of(need.messages_per_day),
            {
                "episodes/s at the peak": short(need.episodes),
                "slots": short(need.slots),
                "requests/min": short(need.requests_per_minute),
                "tokens/min": short(need.tokens_per_minute),
                "tokens a day": short(need.tokens_per_day),
                "$ a day": short(need.cost_per_day),
            },
        )
        for need in needs
    ]
    return Finding("messages a day → the LLM", rows)


def simulated(needs: Sequence[Need], found: Sequence[tuple[Seen, Seen]]) -> Finding:
    rows = [
        Line(
            load_of(need.messages_per_day),
            {
                "episodes simulated": str(freely.episodes),
                "until closed p50": seconds(freely.closing_p50),
                "p99": seconds(freely.closing_p99),
                "until the summary p50": seconds(freely.p50),
                "p99 ": seconds(freely.p99),
                "slots used": f"{freely.slots_used:.0%}",
                "with the limits: p99": seconds(limited.p99),
                "fallbacks": f"{limited.fell_back:.0%}",
            },
        )
        for need, (freely, limited) in zip(needs, found, strict=True)
    ]
    return Finding("simulated around the daily peak, with bursts and one restart of the segmenter", rows)


def ends(decades: Sequence[Decade]) -> Finding:
    rows = [
        Line(
            load_of(decade.messages_per_day) if position == 0 else "",
            {"at": short(end.messages_per_day), "comes to its end": end.what, "turn": end.turn},
        )
        for decade in decades
        for position, end in enumerate(decade.ends)
    ]
    return Finding("messages a day → what comes to its end before ten times as many, when there is one of it", rows)
