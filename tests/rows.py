"""Tables of a test module: the `.jsonl` file of its name holds the rows of its tests that are marked `with_rows`."""

import functools
import inspect
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., object])


def with_rows(test: Test) -> Test:
    """Run the test once for each of its rows.

    In the file a line with an object begins a table: it names the test and the arguments. Each list after it is a row,
    and a line with a text is a comment. A first argument `sentence` names the row. `{"repeat": [text, 1000]}` and
    `{"join": [texts]}` stand for long texts, and `{"bytes": text}` for the bytes of a text in Latin-1.
    """
    names, values = _tables(Path(inspect.getfile(test)).with_suffix(".jsonl"))[test.__name__]
    ids = [row[0] for row in values] if names[0] == "sentence" else None
    parametrized: Test = pytest.mark.parametrize(names, values, ids=ids)(test)
    return parametrized


def few_by_day(values: Iterable[Any]) -> list[Any]:
    """Return every fourth value for each change, and the others for the night."""
    return [pytest.param(value, marks=pytest.mark.nightly) if n % 4 else value for n, value in enumerate(values)]


@functools.cache
def _tables(path: Path) -> dict[str, tuple[list[str], list[list[Any]]]]:
    tables: dict[str, tuple[list[str], list[list[Any]]]] = {}
    values: list[list[Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        match json.loads(line, object_hook=_whole):
            case {"test": test, "arguments": names}:
                values = []
                tables[test] = names, values
            case list(row):
                values.append(row)
    return tables


def _whole(given: dict[str, Any]) -> Any:
    match given:
        case {"repeat": [part, int(times)], **others} if not others:
            return part * times
        case {"join": [*texts], **others} if not others:
            return "".join(texts)
        case {"bytes": str(text), **others} if not others:
            return text.encode("latin-1")
    return given
