"""Client of a server with `POST /rerank`, as offered by Cohere, Jina, vLLM and Text Embeddings Inference."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError, model_validator

from afterword.streams.errors import AnswerInvalid
from afterword.streams.http import CALLS_AT_A_TIME, HttpClient
from afterword.streams.settings import MOST_RERANKED, RerankerSettings

PATH = "/rerank"


class RerankServer:
    """Asks a server for the relevance of texts."""

    def __init__(self, settings: RerankerSettings) -> None:
        """Prepare the client without connecting. Raises: ConfigurationError."""
        self._settings = settings
        self._http = HttpClient(settings, "reranker", settings.base_url or "", CALLS_AT_A_TIME)

    async def order(self, query: str, texts: Sequence[str]) -> list[int]:
        """Return the places of the texts, most relevant first. Raises: ProviderError."""
        body = request_body(self._settings, query, texts)
        return places_in(await self._http.post_for_bytes(PATH, body), len(texts))

    async def check(self) -> str:
        """Rank two short texts, and return a description of the server. Raises: ProviderError."""
        await self.order("Which color has the sky?", ["The sky is blue.", "Two and two are four."])
        return " ".join(part for part in (self._http.address, self._settings.model) if part)

    async def close(self) -> None:
        await self._http.close()


def request_body(settings: RerankerSettings, query: str, texts: Sequence[str]) -> dict[str, Any]:
    """Build the JSON of a request, with the names that the server's API uses."""
    if settings.api == "tei":
        return {"query": query, "texts": texts, "truncate": True}
    model = {"model": settings.model} if settings.model else {}
    return {**model, "query": query, "documents": texts, "top_n": len(texts)}


class _Relevance(BaseModel):
    """A document's place in the request, and its relevance."""

    model_config = ConfigDict(hide_input_in_errors=True)

    index: int
    score: float = Field(validation_alias=AliasChoices("relevance_score", "score"), allow_inf_nan=False)


class _Ranking(BaseModel):
    """A server's answer: `results`, Voyage's `data`, or TEI's bare list. Other fields are ignored."""

    model_config = ConfigDict(hide_input_in_errors=True)

    results: Annotated[Sequence[_Relevance], Field(max_length=MOST_RERANKED)] = Field(
        validation_alias=AliasChoices("results", "data")
    )

    @model_validator(mode="before")
    @classmethod
    def has_results(cls, answer: object) -> object:
        return {"results": answer} if isinstance(answer, list) else answer


def places_in(content: bytes, count: int) -> list[int]:
    """Read the places of `count` documents from an answer, most relevant first. Raises: AnswerInvalid."""
    try:
        found = _Ranking.model_validate_json(content).results
    except ValidationError:  # the original error quotes the answer
        raise AnswerInvalid(problem="the response was not a ranking") from None
    places = [one.index for one in sorted(found, key=lambda one: -one.score)]
    if not places or len(set(places)) < len(places) or not all(0 <= place < count for place in places):
        raise AnswerInvalid(problem="it named no document, the same one twice, or an unknown one")
    return places
