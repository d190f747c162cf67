"""Thousands of histories log millions of warnings that are meant to be there."""

from collections.abc import Iterator

import pytest

from tests.model.quiet import quiet


@pytest.fixture(autouse=True)
def no_logs() -> Iterator[None]:
    with quiet():
        yield
