"""Fixtures for tests on real servers, and on servers that are not there."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine where nobody listens, kept from everybody else."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
