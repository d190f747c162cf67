"""What a summarizer loads before it is ready, so that its first episode does not wait for it."""

import pytest

from afterword.streams.errors import StoreUnavailable
from afterword.streams.summarizer_app import CONNECTIONS, load_models, open_connections
from afterword.streams.text import language_identifier, tokens


def test_the_models_of_the_check_and_of_the_index_are_loaded() -> None:
    loaded = [language_identifier.identifier, tokens._tokenizer]
    for one in loaded:
        one.cache_clear()
    load_models()
    assert [one.cache_info().currsize for one in loaded] == [1, 1]


class Episodes:
    """Store that counts reads under way at a time, and fails with an error."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[str] = []
        self._error = error

    async def latest_row(self, scope: str) -> None:
        self.asked.append(scope)
        if self._error:
            raise self._error


async def test_as_many_connections_are_opened_as_an_episode_needs() -> None:
    episodes = Episodes()
    await open_connections(episodes)  # type: ignore[arg-type]  # it needs one method
    assert len(episodes.asked) == CONNECTIONS


async def test_a_database_that_is_away_is_left_to_the_first_episode() -> None:
    await open_connections(Episodes(StoreUnavailable(store="mongodb", problem="away")))  # type: ignore[arg-type]


async def test_any_other_error_is_not_passed_over() -> None:
    with pytest.raises(LookupError):
        await open_connections(Episodes(LookupError()))  # type: ignore[arg-type]
