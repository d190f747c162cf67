"""Generate docs/settings.md from the settings."""

from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from afterword.streams.settings import variable
from tools.reference.markdown import NOTHING, table

NAMES: dict[Any, str] = {
    str: "text",
    SecretStr: "secret",
    Path: "path",
    int: "integer",
    float: "number",
    bool: "boolean",
}
BOUNDS = {"gt": "> {}", "ge": "≥ {}", "le": "≤ {}"}

HEADING = """\
# Settings

Made by `make docs` from `streams/settings.py`; do not edit it by hand.

Settings come from the environment, or from the TOML file that `AFTERWORD_CONFIG` names. The environment wins. Each
table below is a section: `PARTITIONS` of `kafka` is the variable `AFTERWORD_KAFKA__PARTITIONS`, or `partitions` below
`[kafka]` in the file. An empty variable counts as not set. An invalid value, or an unknown variable with our prefix,
stops the start with one line that names it.

If the type is *secret*, the value never appears in logs, error messages or `afterword config show`. It may be in a
file, as secrets of Docker and Kubernetes are: a variable with the suffix `_FILE` (`AFTERWORD_LLM__API_KEY_FILE`) names
the file. A trailing newline is ignored. Set only one of the two variables.
"""
ENDING = """\
## Read elsewhere
| variable | default | meaning |
| --- | --- | --- |
| `AFTERWORD_CACHE_DIR` | `$XDG_CACHE_HOME/afterword`, else `~/.cache/afterword` | jars, and the unpacked encoder |
"""


def reference(settings: type[BaseModel]) -> str:
    """Return a table of the top-level settings and one for each section, as Markdown.

    It works on the class, so it never shows a value that somebody set.
    """
    sections = [(name, field.annotation) for name, field in settings.model_fields.items() if _is_section(field)]
    tables = (f"## {name}\n{_table(f'`{variable((name,))}__…`', model, '')}" for name, model in sections)
    return "\n".join([HEADING, _table("variable", settings, variable(())), *tables, ENDING])


def _table(heading: str, model: Any, prefix: str) -> str:
    rows = (
        (f"`{prefix}{name.upper()}`", _type(field), _default(field.default), field.description or "")
        for name, field in model.model_fields.items()
        if not _is_section(field)
    )
    return table((heading, "type", "default", "meaning"), rows)


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def _type(field: FieldInfo) -> str:
    if isinstance(field.json_schema_extra, dict) and "type_name" in field.json_schema_extra:
        return str(field.json_schema_extra["type_name"])
    base = _without_none(field.annotation)
    name = ", ".join(f"`{choice}`" for choice in get_args(base)) if get_origin(base) is Literal else NAMES[base]
    bounds = {kind: getattr(bound, kind) for bound in field.metadata for kind in BOUNDS if hasattr(bound, kind)}
    if "ge" in bounds:
        bounds.pop("gt", None)
    return ", ".join([name, *(BOUNDS[kind].format(_number(value)) for kind, value in bounds.items())])


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) not in (Union, UnionType):
        return annotation
    return next(choice for choice in get_args(annotation) if choice is not NoneType)


def _default(value: Any) -> str:
    if value is None:
        return NOTHING
    shown = value.get_secret_value() if isinstance(value, SecretStr) else value
    return f"`{_number(shown)}`"


def _number(value: Any) -> str:
    """Write a whole number without `.0`, true and false as JSON and TOML do, and anything else as it is."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
