"""Who writes the summaries: an LLM over HTTP, or the extractive method that needs none."""

from afterword.streams.settings import Llm, Summarizer
from afterword.streams.stores.replies import ReplyCache
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.prompt import PRESETS, Template
from afterword.streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from afterword.streams.summarizer.providers.cached import Cached
from afterword.streams.summarizer.providers.chat import ChatProvider
from afterword.streams.summarizer.providers.endpoint import ChatEndpoint
from afterword.streams.summarizer.providers.extractive import ExtractiveProvider
from afterword.streams.summarizer.providers.fallback import WithFallback
from afterword.streams.summarizer.providers.ollama import OllamaChat
from afterword.streams.summarizer.providers.openai import OpenAiChat
from afterword.streams.summarizer.providers.scripted import ScriptedProvider
from afterword.streams.summarizer.providers.watched import Watched

__all__ = [
    "ExtractiveProvider",
    "Provider",
    "ScriptedProvider",
    "Summary",
    "SummaryRequest",
    "WithFallback",
    "make_provider",
    "template_of",
]


def make_provider(
    llm: Llm,
    summarizer: Summarizer = Summarizer(),  # noqa: B008 – immutable
    replies: ReplyCache | None = None,
    observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
) -> Provider:
    """The provider that the settings choose, without a fallback. Connects to nothing yet.

    Raises: ConfigurationError when the address or the key cannot be used.
    """
    if llm.provider == "extractive":
        return ExtractiveProvider()
    endpoint: ChatEndpoint = (OpenAiChat if llm.provider == "openai" else OllamaChat)(llm, observer.took)
    endpoint = Watched(endpoint, observer, llm.model)
    if replies is not None and llm.cache_seconds:
        endpoint = Cached(endpoint, replies, llm)
    return ChatProvider(endpoint, llm, template_of(summarizer), observer.retried)


def template_of(summarizer: Summarizer) -> Template:
    """The preset's, or what was written instead of it."""
    text = summarizer.template()
    return PRESETS[summarizer.preset] if text is None else Template(summarizer.preset, text, custom=True)
