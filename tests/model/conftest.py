"""Silences logging: thousands of histories log millions of expected warnings."""

from collections.abc import Iterator

import pytest

from tests.model.profiles import quiet


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    with quiet():
        yield
