"""Turns logging off while histories run."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
