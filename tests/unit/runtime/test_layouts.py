"""Layouts of a source: which partitions are read when it has more of them than its state was made with."""

import pytest
from aiokafka.partitioner import DefaultPartitioner
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from afterword.streams.runtime import EngineMetrics
from afterword.streams.runtime.layouts import Layout, Layouts, decode_layout, encode_layout, layout_of

PARTITIONS = st.integers(1, 200)


@given(st.integers(1, 999_999_999))
def test_a_layout_is_read_back(partitions: int) -> None:
    assert decode_layout(encode_layout(partitions)) == partitions


@pytest.mark.parametrize("metadata", ["", "partitions=0", "partitions=", "partitions=4 ", "eos1.00000000Bg", "4"])
def test_metadata_of_others_names_no_layout(metadata: str) -> None:
    assert decode_layout(metadata) is None
    assert not layout_of([metadata], 8).grown


def test_a_layout_that_is_not_known_leaves_no_metadata() -> None:
    assert encode_layout(0) == ""


@given(PARTITIONS)
def test_a_source_that_did_not_grow_is_read_whole(partitions: int) -> None:
    for recorded in ([], [encode_layout(partitions)] * 3):
        layout = layout_of(recorded, partitions)
        assert not layout.grown
        assert layout.partitions == partitions
        assert all(map(layout.admits, range(partitions)))


@given(PARTITIONS, st.integers(2, 5), st.binary(min_size=1))
def test_of_a_source_that_grew_to_a_multiple_the_partitions_are_read_to_which_no_key_has_moved(
    before: int, times: int, key: bytes
) -> None:
    layout = layout_of([encode_layout(before)], times * before)
    assert layout.grown
    assert layout.partitions == before
    assert [layout.admits(partition) for partition in range(times * before)] == [
        partition < before for partition in range(times * before)
    ]
    old, new = standard(key, before), standard(key, times * before)
    assert new == old or not layout.admits(new)


@given(PARTITIONS, PARTITIONS)
def test_of_a_source_that_grew_otherwise_nothing_is_read(before: int, more: int) -> None:
    layout = layout_of([encode_layout(before)], before + more)
    if more % before:
        assert layout.grown
        assert not any(map(layout.admits, range(before + more)))


@given(PARTITIONS)
def test_nothing_is_read_while_the_state_is_being_handed_over(before: int) -> None:
    layout = layout_of([encode_layout(before), encode_layout(2 * before)], 2 * before)
    assert layout.grown
    assert not any(map(layout.admits, range(2 * before)))


def test_a_source_with_fewer_partitions_was_recreated_which_others_refuse() -> None:
    assert not layout_of([encode_layout(8)], 4).grown


def test_a_source_that_grew_is_told_of_once_and_counted_until_its_state_was_handed_over() -> None:
    registry = CollectorRegistry()
    layouts = Layouts(EngineMetrics(registry, "segmenter"))
    with capture_logs() as logs:
        for _ in range(3):
            layouts.note("in", Layout(frozenset({4}), 8))
    assert [(line["event"], line["log_level"], line["topic"]) for line in logs] == [("source_grown", "error", "in")]
    assert "in has 8 partitions, its state was made with 4" in logs[0]["error"]
    assert "docs/how-to/grow-partitions.md" in logs[0]["error"]
    assert layouts.grown
    assert shown(registry) == 1
    layouts.note("in", Layout(frozenset({8}), 8))
    assert not layouts.grown
    assert shown(registry) == 0


def shown(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("engine_source_grown", {"role": "segmenter", "topic": "in"})


def standard(key: bytes, partitions: int) -> int:
    every = list(range(partitions))
    return int(DefaultPartitioner()(key, every, every))
