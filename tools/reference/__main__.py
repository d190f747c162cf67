"""Rewrite every reference page: python -m tools.reference"""

import json
from pathlib import Path

import typer.main

from afterword.cli import app
from afterword.operating.audit import FINDINGS
from afterword.serving.server import routes_only
from afterword.streams.settings import Settings
from afterword.streams.telemetry.metrics import Metrics
from tools.reference import cli, events, findings, metrics, settings

DOCS = Path(__file__).parents[2] / "docs"


def pages() -> dict[str, str]:
    """Return the contents of the generated files below `docs`."""
    return {
        "settings.md": settings.reference(Settings),
        "reference/cli.md": cli.reference(typer.main.get_command(app), "afterword"),
        "reference/events.md": events.reference(Settings.model_construct()),
        "reference/findings.md": findings.reference(FINDINGS),
        "reference/openapi.json": json.dumps(routes_only().openapi(), indent=1, ensure_ascii=False) + "\n",
        "reference/metrics.md": metrics.reference(Metrics("any", "any")),
    }


if __name__ == "__main__":
    for name, page in pages().items():
        (DOCS / name).write_text(page)
