"""An exactly-once, micro-batching engine under faust-streaming, built on Faust's own plug-in points: see README.md.

Each name is imported on first use, so that commands which only read rows or lag do not load Faust, which is slow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from faust_eos.app import App
    from faust_eos.at_least_once import AtLeastOnce, run_in_batch
    from faust_eos.batch import Batches, Output, Tick, failing_batch
    from faust_eos.failures import Breaker
    from faust_eos.metrics import EngineMetrics
    from faust_eos.options import Options

__all__ = [
    "App",
    "AtLeastOnce",
    "Batches",
    "Breaker",
    "EngineMetrics",
    "Options",
    "Output",
    "Tick",
    "failing_batch",
    "run_in_batch",
]

_MODULES = {
    "App": "app",
    **dict.fromkeys(("AtLeastOnce", "run_in_batch"), "at_least_once"),
    **dict.fromkeys(("Batches", "Output", "Tick", "failing_batch"), "batch"),
    "Breaker": "failures",
    "EngineMetrics": "metrics",
    "Options": "options",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use. Raises: AttributeError."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
