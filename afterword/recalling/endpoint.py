"""Reranking on a server with `POST /rerank`, as Cohere, Jina, vLLM and Text Embeddings Inference have it."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from afterword.recalling.third_stage import RankedDocument, RankingQuestion, checked_places
from afterword.streams.errors import AnswerInvalid, ConfigurationError
from afterword.streams.settings import MOST_RERANKED, RerankerSettings, variable
from afterword.streams.summarizer.llm.http import CALLS_AT_A_TIME, HttpClient

PATH = "/rerank"


class EndpointReranker:
    """Asks the server for the relevance of each document."""

    def __init__(self, settings: RerankerSettings) -> None:
        """Connect to nothing yet. Raises: ConfigurationError."""
        if not settings.base_url:
            needed = f"is required with {variable(('recall', 'rerank'))}=endpoint"
            raise ConfigurationError(setting=variable(("reranker", "base_url")), problem=needed)
        self.candidates = settings.candidates
        self.timeout_seconds = settings.timeout_seconds
        self._settings = settings
        self._http = HttpClient(settings, "reranker", settings.base_url, CALLS_AT_A_TIME)

    async def order(self, question: RankingQuestion) -> list[int]:
        """Raises: ProviderError."""
        body = request_body(self._settings, question)
        return places_in(await self._http.post_for_bytes(PATH, body), len(question.documents))

    async def check(self) -> str:
        """Ask for the order of two short documents. Raises: ProviderError."""
        documents = [RankedDocument(text, datetime.now(UTC)) for text in ("The sky is blue.", "Two and two are four.")]
        await self.order(RankingQuestion("Which color has the sky?", documents))
        return " ".join(part for part in ("endpoint", self._http.address, self._settings.model) if part)

    async def close(self) -> None:
        await self._http.close()


def request_body(settings: RerankerSettings, question: RankingQuestion) -> dict[str, Any]:
    """Make the JSON of a request, in the names of the server's API."""
    texts = [document.text for document in question.documents]
    if settings.api == "tei":
        return {"query": question.query, "texts": texts, "truncate": True}
    model = {"model": settings.model} if settings.model else {}
    return {**model, "query": question.query, "documents": texts, "top_n": len(texts)}


class _Relevance(BaseModel):
    """A document's place in the request, and how relevant it is."""

    model_config = ConfigDict(hide_input_in_errors=True)

    index: int
    score: float = Field(validation_alias=AliasChoices("relevance_score", "score"), allow_inf_nan=False)


class _Ranking(BaseModel):
    """Answer of a server: `results`, Voyage's `data`, or TEI's bare list. Its other fields are not read."""

    model_config = ConfigDict(hide_input_in_errors=True)

    results: Annotated[Sequence[_Relevance], Field(max_length=MOST_RERANKED)] = Field(
        validation_alias=AliasChoices("results", "data")
    )

    @model_validator(mode="before")
    @classmethod
    def has_results(cls, answer: object) -> object:
        return {"results": answer} if isinstance(answer, list) else answer


def places_in(content: bytes, count: int) -> list[int]:
    """Read the places of `count` documents, the most relevant first. Raises: AnswerInvalid."""
    try:
        found = _Ranking.model_validate_json(content).results
    except ValidationError:  # its text quotes what was sent
        raise AnswerInvalid(problem="the response was not a ranking") from None
    return checked_places([one.index for one in sorted(found, key=lambda one: -one.score)], count)
