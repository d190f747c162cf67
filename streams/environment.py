"""Which environment variable sets what, and secrets that a variable names a file for."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from afterword.streams.errors import ConfigurationError

PREFIX = "AFTERWORD_"
FILE = "_FILE"
"""Ends the variable that names the file a secret is in, as for Docker's and Kubernetes' secrets."""

KUBERNETES = re.compile(
    PREFIX + r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*|=\w+://.*))", re.S
)
"""Told to every pod of a namespace that has a Service named afterword, or afterword-something."""

Location = tuple[int | str, ...]
"""Where a setting is: its section, if any, and its name."""


def variable(location: Location) -> str:
    """The environment variable of a setting, which names it wherever it was set."""
    return PREFIX + "__".join(str(part).upper() for part in location)


def locations(model: type[BaseModel], section: Location = ()) -> Iterator[tuple[Location, FieldInfo]]:
    """Every setting and every section of settings, each before what is in it."""
    for name, field in model.model_fields.items():
        yield (*section, name), field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from locations(field.annotation, (*section, name))


def is_secret(field: FieldInfo) -> bool:
    """Also where it may be None."""
    return SecretStr in (field.annotation, *get_args(field.annotation))


def unknown_variables(model: type[BaseModel], others: set[str]) -> set[str]:
    """Variables with our prefix that set nothing: most likely misspelt, and silently ignored by the library.

    `others`: variables, without the prefix, that are read elsewhere.
    """
    known = {PREFIX + name for name in others}
    for location, field in locations(model):
        known |= {variable(location), variable(location) + FILE} if is_secret(field) else {variable(location)}
    return {
        name
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and name.upper() not in known and not KUBERNETES.fullmatch(f"{name}={value}")
    }


def with_secrets_from_files(model: type[BaseModel], environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """The environment as it would be if each `…_FILE` variable's secret had been set directly; names in lower case.

    Raises: ConfigurationError when the file cannot be read, or when the secret is set directly too.
    """
    found = dict(environment)
    for location, field in locations(model):
        name = variable(location)
        if is_secret(field) and (file := found.pop((name + FILE).lower(), None)):
            if found.get(name.lower()):
                problem = f"{name} is set too; only one of them can count"
                raise ConfigurationError(setting=name + FILE, problem=problem)
            found[name.lower()] = read_secret(name + FILE, Path(file))
    return found


def read_secret(setting: str, file: Path) -> str:
    """The file's text without the newline that editors end it with. Raises: ConfigurationError naming the setting."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(setting=setting, problem=f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:  # the error's own text quotes the bytes
        raise ConfigurationError(setting=setting, problem=f"{file}: not UTF-8 text") from None
    secret = text.removesuffix("\n").removesuffix("\r")
    if not secret:
        raise ConfigurationError(setting=setting, problem=f"{file}: the file is empty")
    return secret
