"""mem0's memory behind FastAPI: what it is given, and its search. Runs in its own environment: see benchmarks/serve.py.

Arguments: port, directory of its store, address of an OpenAI-compatible server.
"""

import sys
import threading
from typing import Any

import uvicorn
from fastapi import FastAPI
from mem0 import Memory

DIMENSIONS = 256
K = 5


def opened(directory: str, url: str) -> Any:
    """A memory with its default store, Qdrant's local mode, and its default clients, which ask `url`."""
    client = {"openai_base_url": url, "api_key": "none"}
    return Memory.from_config(
        {
            "llm": {"provider": "openai", "config": {"model": "stand-in", **client}},
            "embedder": {
                "provider": "openai",
                "config": {"model": "stand-in", "embedding_dims": DIMENSIONS, **client},
            },
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": f"{directory}/points", "embedding_model_dims": DIMENSIONS, "on_disk": True},
            },
            "history_db_path": f"{directory}/history.db",
        }
    )


def application(memory: Any) -> FastAPI:
    app, alone = FastAPI(), threading.Lock()  # its local store is for one thread at a time

    @app.post("/memories")
    def add(text: dict[str, str]) -> None:
        with alone:
            memory.add([{"role": "user", "content": text["text"]}], user_id=text["user_id"], infer=False)

    @app.post("/recall")
    def recall(wanted: dict[str, Any]) -> Any:
        with alone:
            return memory.search(wanted["query"], filters={"user_id": wanted["user_id"]}, top_k=K)

    @app.get("/ready")
    def ready() -> str:
        return "ok"

    return app


if __name__ == "__main__":
    port, store, llm = sys.argv[1:]
    uvicorn.run(application(opened(store, llm)), port=int(port), access_log=False, http="h11")
