"""Opening the third stage of a search: the one place that knows its rerankers."""

from typing import TYPE_CHECKING

from afterword.recalling.third_stage import Reranker, ThirdStage, mask_of
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Settings, variable
from afterword.streams.stores.budgets import Budgets
from afterword.streams.stores.opening import Stores

if TYPE_CHECKING:
    from afterword.streams.telemetry import Metrics


def open_third_stage(settings: Settings, stores: Stores, metrics: "Metrics | None") -> ThirdStage | None:
    """Make the configured third stage, if any. It connects with its first question. Raises: ConfigurationError."""
    reranker = make_reranker(settings, stores.budgets if settings.budget.limited else None, metrics)
    if reranker is None:
        return None
    characters = settings.reranker.document_characters
    return ThirdStage(reranker, stores.messages, characters, mask_of(settings.redaction), metrics)


def make_reranker(settings: Settings, budgets: Budgets | None, metrics: "Metrics | None") -> Reranker | None:
    """Make the configured reranker; None for none. Raises: ConfigurationError."""
    match settings.recall.rerank:
        case "endpoint":
            from afterword.recalling.endpoint import EndpointReranker  # here: its client takes time to import

            return EndpointReranker(settings.reranker)
        case "llm":
            return _llm_reranker(settings, budgets, metrics)
        case _:
            return None


def _llm_reranker(settings: Settings, budgets: Budgets | None, metrics: "Metrics | None") -> Reranker:
    """Raises: ConfigurationError."""
    if settings.llm.provider == "extractive":
        needed = f"{variable(('recall', 'rerank'))}=llm needs an LLM: openai or ollama"
        raise ConfigurationError(setting=variable(("llm", "provider")), problem=needed)
    try:
        from opentelemetry.trace import NoOpTracer

        from afterword.recalling.llm_order import LlmReranker
        from afterword.streams.summarizer.budget import TokenBudget
        from afterword.streams.summarizer.control_tokens import use_control_tokens
        from afterword.streams.summarizer.llm.protocols import make_client
        from afterword.streams.telemetry import Metrics
    except ModuleNotFoundError:
        problem = "llm needs: pip install 'afterword[worker]'"
        raise ConfigurationError(setting=variable(("recall", "rerank")), problem=problem) from None
    use_control_tokens(settings.summarizer.control_tokens.split())
    counted = metrics or Metrics("recall", "")
    client = make_client(settings.llm, None, counted, NoOpTracer())
    return LlmReranker(client, settings.reranker, TokenBudget(settings.budget, budgets, counted) if budgets else None)
