"""Chat protocols by provider, and the client of the configured one.

Another protocol is a module beside `openai` and `ollama` and a line in `PROTOCOLS`; `llm.provider` has to allow it.
"""

from collections.abc import Mapping

from opentelemetry.trace import Tracer

from afterword.streams.settings import Llm
from afterword.streams.summarizer.llm.chat import HttpProtocol
from afterword.streams.summarizer.llm.client import LlmClient
from afterword.streams.summarizer.llm.http import HttpClient
from afterword.streams.summarizer.llm.ollama import Ollama
from afterword.streams.summarizer.llm.openai import OpenAi
from afterword.streams.telemetry import Metrics

PROTOCOLS: Mapping[str, type[HttpProtocol]] = {
    "openai": OpenAi,
    "ollama": Ollama,
}
"""Chat protocols by `llm.provider`."""


def make_client(llm: Llm, metrics: Metrics, tracer: Tracer) -> LlmClient:
    """Make the client of the configured server. It connects with its first question.

    Raises: ConfigurationError when the address, the key or the CA file cannot be used.
    """
    protocol = PROTOCOLS[llm.provider]
    http = HttpClient(llm, "llm", protocol.DEFAULT_URL, llm.max_concurrency, metrics.llm_request_seconds)
    return LlmClient(protocol(llm, http), llm, metrics, tracer, close=http.close)
