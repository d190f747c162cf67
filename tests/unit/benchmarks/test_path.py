"""The path of a message: which spans belong to it, and what each step takes."""

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from benchmarks.latency import Trip
from benchmarks.llm import Span as Call
from benchmarks.path import (
    STEPS,
    Names,
    Traced,
    Watched,
    finding,
    finding_of_starts,
    moments,
    seconds_of,
    slowest,
    spans_in,
    trace_of,
)

NAMES = Names("process messages", "commit segmenter", "process episode.closed", "commit summarizer")
EPOCH = 1000.0
TRIP = Trip("account-3-9", sent=1.0, closed_read=7.0, summary_read=17.0)
SPANS = {
    "process messages": (3, 4),
    "commit segmenter": (5, 6),
    "process episode.closed": (8, 16),
    "summarize": (9, 12.5),
    "chat stand-in": (9.5, 12),
    "store_episode": (12.6, 13),
    "publish": (14, 14.1),
    "commit summarizer": (15, 16),
}
CALLS = [Call("account-3", 4.0, 4.5), Call("account-3", 10.0, 11.0)]


def traced(times: dict[str, tuple[float, float]]) -> dict[str, list[Traced]]:
    return {name: [Traced(name, frozenset(), EPOCH + began, EPOCH + ended)] for name, (began, ended) in times.items()}


def test_the_moments_of_an_episode_are_by_one_clock_and_one_more_than_there_are_steps() -> None:
    found = moments(TRIP, 2.0, traced(SPANS), CALLS, NAMES, EPOCH)
    assert found is not None
    assert [at - EPOCH for at in found] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12.5, 13, 14, 15, 16, 17]
    assert len(found) == len(STEPS) + 1
    assert sum(seconds_of(found)) == TRIP.summarised


@pytest.mark.parametrize("name", SPANS)
def test_an_episode_without_one_of_its_spans_has_no_path(name: str) -> None:
    spans = traced({one: times for one, times in SPANS.items() if one != name})
    assert moments(TRIP, 2.0, spans, CALLS, NAMES, EPOCH) is None


def test_an_answer_that_came_from_the_cache_has_no_path() -> None:
    assert moments(TRIP, 2.0, traced(SPANS), CALLS[:1], NAMES, EPOCH) is None


def path(*seconds: float) -> tuple[float, ...]:
    """Moments of an episode that takes so long for its first steps, and nothing for the others."""
    at, found = 0.0, [0.0]
    for duration in (*seconds, *[0.0] * (len(STEPS) - len(seconds))):
        at += duration
        found.append(at)
    return tuple(found)


def test_a_step_is_shown_with_its_quantiles_and_its_mean_in_the_slowest_episodes() -> None:
    paths = [path(0.001 * number, 0.002) for number in range(1, 100)] + [path(0.010, 0.500)]
    assert slowest(paths, 0.01) == [path(0.010, 0.500)]
    found = finding(Watched({"alone": paths}, lost=2))
    first, second, *_, every = (line.figures for line in found.lines)
    assert [first[f"alone, {name}"] for name in ("p50", "p99", "slow")] == ["49.0 ms", "98.0 ms", "80.0 ms"]
    assert [second[f"alone, {name}"] for name in ("p50", "p99", "slow")] == ["2.0 ms", "2.0 ms", "101.6 ms"]
    assert every["alone, p99"] == "101.0 ms"
    assert [line.program for line in found.lines] == [*STEPS, "all"]
    assert "100 alone; 2 more" in found.notes[0]


def test_the_first_episode_is_shown_beside_the_last_ones_of_each_start() -> None:
    def start(first: float) -> list[Trip]:
        return [Trip("account-1-9", 0.0, 0.0, first), *[Trip("account-1-9", 0.0, 0.0, 0.050)] * 20]

    first, second, last = finding_of_starts([start(0.9), start(0.3), start(0.4)]).lines
    assert dict(first.figures) == {"median": "400 ms", "most": "900 ms"}
    assert second.figures == last.figures == {"median": "50 ms", "most": "50 ms"}


def test_a_span_belongs_to_its_own_trace_and_to_those_that_it_links() -> None:
    own, linked = bytes.fromhex(trace_of("account-0-9")), bytes.fromhex(trace_of("account-1-9"))
    span = Span(
        name="commit segmenter",
        trace_id=own,
        start_time_unix_nano=1_500_000_000,
        end_time_unix_nano=2_000_000_000,
        links=[Span.Link(trace_id=linked)],
    )
    body = ExportTraceServiceRequest(resource_spans=[ResourceSpans(scope_spans=[ScopeSpans(spans=[span])])])
    traces = frozenset({trace_of("account-0-9"), trace_of("account-1-9")})
    assert list(spans_in(body.SerializeToString())) == [Traced("commit segmenter", traces, 1.5, 2.0)]


def test_each_message_has_a_trace_of_its_own() -> None:
    traces = [trace_of(f"account-{conversation}-{number}") for conversation in (0, 1, 11) for number in (0, 1, 11)]
    assert len({*traces}) == len(traces)
    assert {len(trace) for trace in traces} == {32}
    assert all(int(trace[:16], 16) and int(trace[16:], 16) for trace in traces)
