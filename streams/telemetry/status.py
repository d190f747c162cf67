"""What a worker answers when a person asks how it is."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from afterword.streams.runtime.lag import Standing
from afterword.version import running_version


class Status:
    """`settings`: as they may be shown. `reasons`: why the worker is not ready. `standings`: of its partitions."""

    def __init__(
        self,
        role: str,
        settings: Mapping[str, Any],
        reasons: Callable[[], Mapping[str, str]],
        standings: Callable[[], Iterable[Standing]],
    ) -> None:
        self._role = role
        self._settings = settings
        self._reasons = reasons
        self._standings = standings

    def as_dict(self) -> dict[str, Any]:
        reasons = self._reasons()
        return {
            "version": running_version(),
            "role": self._role,
            "ready": not reasons,
            "reasons": dict(reasons),
            "partitions": [_partition(found) for found in self._standings()],
            "settings": self._settings,
        }


def _partition(found: Standing) -> dict[str, Any]:
    names = ("topic", "partition", "ready", "lag_records", "lag_seconds", "state_bytes")
    return {name: value for name in names if (value := getattr(found, name)) is not None}
