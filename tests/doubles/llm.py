"""LLM clients and providers as in a worker, with unused telemetry."""

from opentelemetry.trace import NoOpTracer

from afterword.streams.settings import Llm, Settings, SummarizerSettings
from afterword.streams.summarizer.llm import ChatProtocol, LlmClient
from afterword.streams.summarizer.prompt import EPISODIC, Template
from afterword.streams.summarizer.providers import LlmProvider, Provider, make_provider
from afterword.streams.telemetry.metrics import Metrics


def unread() -> Metrics:
    return Metrics("test", "0")


def a_client(protocol: ChatProtocol, llm: Llm) -> LlmClient:
    return LlmClient(protocol, llm, unread(), NoOpTracer())


def an_llm_provider(protocol: ChatProtocol, llm: Llm, template: Template = EPISODIC) -> LlmProvider:
    return LlmProvider(a_client(protocol, llm), llm, template)


def a_provider(llm: Llm, summarizer: SummarizerSettings | None = None) -> Provider:
    settings = Settings.model_validate({"llm": llm, "summarizer": summarizer or SummarizerSettings()})
    return make_provider(settings, unread(), NoOpTracer())
