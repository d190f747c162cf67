"""Afterword's memory for agents, the command line, and the embedded stack for laptops and tests."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from afterword.memory import Memory

__all__ = ["Memory"]


def __getattr__(name: str) -> Any:
    """`Memory` is imported when it is first asked for: the command line starts without the stores' clients."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from afterword.memory import Memory

    return Memory
