"""A real model behind POST /rerank, for python -m benchmarks.recall --encoder DIRECTORY

A sentence encoder: documents are ordered by the cosine of their vector and that of the query. Numpy computes the layers
of BERT, so a small model needs no framework. Listens on 127.0.0.1, prints its address, ends with its standard input.
"""

import asyncio
import json
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from aiohttp import web
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Floats = NDArray[np.float32]

MOST_TOKENS = 256
"""What the model was trained with; the rest of a text is not read."""
KEPT_VECTORS = 65_536


class SentenceEncoder:
    """BERT with mean pooling, as the files of sentence-transformers describe it."""

    def __init__(self, directory: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)
        self._weights = load_file(directory / "model.safetensors")
        config = json.loads((directory / "config.json").read_text())
        self._layers, self._heads = config["num_hidden_layers"], config["num_attention_heads"]
        self.encode = lru_cache(KEPT_VECTORS)(self._encode)

    def _encode(self, text: str) -> Floats:
        """Vector of a text, of length 1."""
        ids = self._tokenizer.encode(text).ids
        states = self._normed(
            self._weights["embeddings.word_embeddings.weight"][ids]
            + self._weights["embeddings.position_embeddings.weight"][: len(ids)]
            + self._weights["embeddings.token_type_embeddings.weight"][0],
            "embeddings.LayerNorm",
        )
        for number in range(self._layers):
            states = self._layer(states, f"encoder.layer.{number}")
        mean = states.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _layer(self, states: Floats, name: str) -> Floats:
        attended = self._linear(self._attention(states, f"{name}.attention.self"), f"{name}.attention.output.dense")
        states = self._normed(states + attended, f"{name}.attention.output.LayerNorm")
        inner = gelu(self._linear(states, f"{name}.intermediate.dense"))
        return self._normed(states + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _attention(self, states: Floats, name: str) -> Floats:
        parts = (self._by_head(self._linear(states, f"{name}.{part}")) for part in ("query", "key", "value"))
        query, key, value = parts
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(query.shape[-1]))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return (weights @ value).transpose(1, 0, 2).reshape(states.shape)

    def _by_head(self, states: Floats) -> Floats:
        return states.reshape(len(states), self._heads, -1).transpose(1, 0, 2)

    def _linear(self, states: Floats, name: str) -> Floats:
        return states @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _normed(self, states: Floats, name: str) -> Floats:
        centred = states - states.mean(axis=-1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + np.float32(1e-12))
        return centred / deviation * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def gelu(values: Floats) -> Floats:
    """GELU by its tanh approximation, which differs from the exact one by less than 0.001."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (values + np.float32(0.044715) * values * values * values)
    return np.float32(0.5) * values * (1 + np.tanh(inner))


def ranked(encoder: SentenceEncoder, query: str, documents: list[str]) -> list[dict[str, Any]]:
    """Results as Cohere's API has them, the most similar document first."""
    wanted = encoder.encode(query)
    scores = [float(encoder.encode(document) @ wanted) for document in documents]
    order = sorted(range(len(documents)), key=lambda number: -scores[number])
    return [{"index": number, "relevance_score": scores[number]} for number in order]


async def serve(encoder: SentenceEncoder) -> None:
    async def rerank(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        return web.json_response({"results": ranked(encoder, asked["query"], asked["documents"])})

    app = web.Application(client_max_size=8_000_000)
    app.router.add_post("/rerank", rerank)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    sys.stdout.write(f"http://127.0.0.1:{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(serve(SentenceEncoder(Path(sys.argv[1]))))
