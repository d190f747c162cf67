"""Search budgets of the model check, and no logging while histories run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
from hypothesis import HealthCheck, Phase, settings

NAME = "MODEL_PROFILE"
EXAMPLES = {"push": 100, "short": 400, "long": 20_000}
"""Histories of each machine; MODEL_PROFILE names the profile, or a number of histories."""
STEPS = 40


def profile() -> settings:
    name = os.environ.get(NAME, "push")
    return settings(
        max_examples=EXAMPLES[name] if name in EXAMPLES else int(name),
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
        phases=[phase for phase in Phase if phase is not Phase.explain],
    )


@contextmanager
def quiet() -> Iterator[None]:
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
