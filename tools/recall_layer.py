"""Trains the layer between the sentence encoder and our vectors: python -m tools.recall_layer

The encoder puts texts that say the same beside each other; a question and the message that answers it do not say the
same. Two matrices, one for queries and one for messages, bring them together. They are trained on
benchmarks/data/recall_pairs.tsv.gz so that each question is nearer to its own message than to the other messages of a
batch (InfoNCE; van den Oord et al., 2018), and stay close to the encoder's principal components, where they began.
"""

import gzip
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from afterword.streams.stores.index import VECTOR_CHARACTERS
from afterword.streams.stores.packing import unit
from afterword.streams.summarizer import embedders
from afterword.streams.summarizer.sentence_encoder import SentenceEncoder

PAIRS = Path("benchmarks/data/recall_pairs.tsv.gz")
"""Lines of language, message, and question."""
LAYER = Path("streams/summarizer/recall_layer.npz")
DIMENSIONS, STEPS, BATCH, TEMPERATURE = 384, 300, 256, 0.1
RATE, FIRST_DECAY, SECOND_DECAY = 1e-3, 0.9, 0.999
"""Of Adam (Kingma and Ba, 2015)."""
PULL = 0.03
"""How strongly the matrices are pulled back to where they began."""
SEED = 0

Floats = NDArray[np.float32]


class Pairs(NamedTuple):
    messages: list[str]
    questions: list[str]


def read_pairs(file: Path = PAIRS) -> Pairs:
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        rows = [line.rstrip("\n").split("\t") for line in lines]
    return Pairs([message for _, message, _ in rows], [question for _, _, question in rows])


def trained(questions: Floats, messages: Floats) -> tuple[Floats, Floats]:
    """Return the two matrices. The arguments are unit vectors, and the rows of each pair are the same."""
    random = np.random.default_rng(SEED)
    start = np.linalg.svd(np.concatenate([questions, messages]), full_matrices=False)[2][:DIMENSIONS]
    matrices = [start.copy(), start.copy()]
    moments = [(np.zeros_like(start), np.zeros_like(start)) for _ in matrices]
    for step in range(1, STEPS + 1):
        batch = random.permutation(len(questions))[:BATCH]
        inputs = questions[batch], messages[batch]
        for at, gradient in enumerate(_gradients(matrices, inputs)):
            full = gradient + PULL * (matrices[at] - start)
            first, second = moments[at]
            first += (1 - FIRST_DECAY) * (full - first)
            second += (1 - SECOND_DECAY) * (full**2 - second)
            spread = np.sqrt(second / (1 - SECOND_DECAY**step)) + 1e-8
            matrices[at] -= RATE * first / (1 - FIRST_DECAY**step) / spread
    return matrices[0], matrices[1]


def _gradients(matrices: list[Floats], inputs: tuple[Floats, Floats]) -> list[Any]:
    """Differentiate the loss, which is the mean of both directions: questions among messages, and the reverse."""
    mapped = [given @ matrix.T for given, matrix in zip(inputs, matrices, strict=True)]
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in mapped]
    units = [rows / length for rows, length in zip(mapped, lengths, strict=True)]
    scores = units[0] @ units[1].T / TEMPERATURE
    errors = (_softmax(scores) + _softmax(scores.T).T) / 2 - np.eye(len(scores), dtype=np.float32)
    errors /= len(scores) * TEMPERATURE
    of_units = [errors @ units[1], errors.T @ units[0]]
    return [
        ((slope - (slope * rows).sum(1, keepdims=True) * rows) / length).T @ given
        for slope, rows, length, given in zip(of_units, units, lengths, inputs, strict=True)
    ]


def _softmax(scores: Floats) -> Any:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    encoder, pairs = SentenceEncoder(), read_pairs()
    background = encoder.encode(embedders.background_sentences())
    mean = background.mean(axis=0)
    messages = [message[:VECTOR_CHARACTERS] for message in pairs.messages]
    query, passage = trained(*(unit(encoder.encode(texts) - mean) for texts in (pairs.questions, messages)))
    known = unit(unit(background - mean) @ passage.T)
    arrays = {"mean": mean, "query": query, "passage": passage, "background": known}
    np.savez_compressed(LAYER, **{name: array.astype(np.float16) for name, array in arrays.items()})


if __name__ == "__main__":
    main()
