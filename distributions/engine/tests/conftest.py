"""Hypothesis profiles, and fixtures that keep traces in memory."""

import hypothesis
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

for name, examples in {"push": 30, "nightly": 300}.items():
    # a busy machine is not a failure
    slow = [hypothesis.HealthCheck.too_slow]
    # every change is tested with the same examples; other ones are looked for at night
    same = name == "push"
    hypothesis.settings.register_profile(
        name, max_examples=examples, deadline=None, derandomize=same, suppress_health_check=slow
    )
hypothesis.settings.load_profile("push")


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(spans: InMemorySpanExporter) -> Tracer:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(spans))
    return provider.get_tracer("engine")
