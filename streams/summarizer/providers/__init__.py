"""Who writes the summaries: an LLM over HTTP, or the extractive method that needs none."""

from streams.settings import Llm, Summarizer
from streams.stores.replies import ReplyCache
from streams.summarizer.prompt import PRESETS, Template
from streams.summarizer.providers.base import Provider, Summary, SummaryRequest
from streams.summarizer.providers.cached import Cached
from streams.summarizer.providers.chat import ChatProvider
from streams.summarizer.providers.endpoint import ChatEndpoint
from streams.summarizer.providers.extractive import ExtractiveProvider
from streams.summarizer.providers.fallback import WithFallback
from streams.summarizer.providers.ollama import OllamaChat
from streams.summarizer.providers.openai import OpenAiChat
from streams.summarizer.providers.scripted import ScriptedProvider

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
) -> Provider:
    """The provider that the settings choose, without a fallback. Connects to nothing yet.

    Raises: ConfigurationError when the address or the key cannot be used.
    """
    if llm.provider == "extractive":
        return ExtractiveProvider()
    endpoint: ChatEndpoint = OpenAiChat(llm) if llm.provider == "openai" else OllamaChat(llm)
    if replies is not None and llm.cache_seconds:
        endpoint = Cached(endpoint, replies, llm)
    return ChatProvider(endpoint, llm, template_of(summarizer))


def template_of(summarizer: Summarizer) -> Template:
    """The preset's, or what was written instead of it."""
    text = summarizer.template()
    return PRESETS[summarizer.preset] if text is None else Template(summarizer.preset, text, custom=True)
