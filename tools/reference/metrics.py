"""Generate docs/reference/metrics.md from the registry."""

from afterword.streams.telemetry.metrics import Metrics
from tools.reference.markdown import NOTHING, table

HEADING = """\
# Metrics

Made by `make docs` from `streams/telemetry/metrics.toml` and `distributions/engine/faust_eos/metrics.toml`; do not edit
it by hand.

Each worker serves its metrics at `/metrics` on its health port, in Prometheus' text format; see
[observe](../how-to/observe.md). A metric that does not apply to a role stays at 0 or has no series. Labels have few
values and are never ids. Counters also count work that is repeated after a failed commit.

"""


def reference(metrics: Metrics) -> str:
    """Return a table of all metrics by name, as Markdown."""
    rows = (
        (f"`{name}`", kind, ", ".join(f"`{label}`" for label in labels) or NOTHING, meaning)
        for name, kind, labels, meaning in sorted(metrics.described)
    )
    return HEADING + table(("metric", "type", "labels", "meaning"), rows)
