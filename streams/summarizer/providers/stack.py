"""How the providers stand around each other: who checks, who shortens, who stands in."""

from afterword.streams.settings import Settings
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.replies import ReplyCache
from afterword.streams.summarizer.long_input import LongInput
from afterword.streams.summarizer.observer import Observer
from afterword.streams.summarizer.prompt import plain, structured
from afterword.streams.summarizer.providers import (
    ExtractiveProvider,
    Provider,
    WithFallback,
    make_provider,
    template_of,
)
from afterword.streams.summarizer.providers.budgeted import Budgeted
from afterword.streams.summarizer.providers.chat import ChatProvider
from afterword.streams.summarizer.providers.checked import Checked
from afterword.streams.summarizer.providers.fallback import waited_for


def make_summarizer_provider(
    settings: Settings,
    budgets: Budgets,
    replies: ReplyCache,
    observer: Observer = Observer(),  # noqa: B008 – does nothing, keeps nothing
) -> WithFallback:
    """The whole stack. Connects to nothing yet.

    Raises: ConfigurationError when a setting of the LLM cannot be used.
    """
    made = make_provider(settings.llm, settings.summarizer, replies, observer)
    if isinstance(made, ChatProvider):
        made = LongInput(made, settings.summarizer.tool_output_characters)
    llm: Provider = Checked(made, settings.quality, observer.refused, instructions(settings))
    if settings.budget.limited:
        llm = Budgeted(llm, budgets, settings.budget, observer=observer)
    fallback = Checked(ExtractiveProvider(), settings.quality)
    return WithFallback(llm, fallback, waited_for(settings.summarizer, settings.budget))


def instructions(settings: Settings) -> str:
    """All that any of our prompts may tell a model."""
    return f"{structured.FRAME}\n{plain.FRAME}\n{template_of(settings.summarizer).text}"
