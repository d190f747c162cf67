"""Settings as they may be shown: no secret, and no address with a user and a password in it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr

from afterword.streams.environment import Location, locations, variable
from afterword.streams.settings import Settings

HIDDEN = "********"
URI = ("mongo", "uri")
_HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?"
_ADDRESS = re.compile(
    rf"(?P<scheme>[a-z][a-z0-9+]*://)(?:[^/?#@\s]*@)?(?P<place>{_HOST}(?:,{_HOST})*(?:/[\w./-]*)?)(?:\?.*)?"
)


@dataclass(frozen=True)
class Shown:
    """One setting; `value` is a secret's replacement or what JSON can hold."""

    location: Location
    value: Any
    is_default: bool

    @property
    def variable(self) -> str:
        return variable(self.location)


def without_credentials(address: str) -> str:
    """`mongodb://user:password@host/db?option=…` → `mongodb://host/db`.

    What is not of this form is hidden as a whole: nobody knows which part of it is the password.
    """
    found = _ADDRESS.fullmatch(address)
    return found["scheme"] + found["place"] if found else HIDDEN


def shown(settings: Settings) -> Iterator[Shown]:
    """Every setting, in the order of the reference."""
    for location, field in locations(Settings):
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            *sections, name = map(str, location)
            section: Any = settings
            for step in sections:
                section = getattr(section, step)
            yield Shown(location, presentable(location, getattr(section, name)), name not in section.model_fields_set)


def presentable(location: Location, value: Any) -> Any:
    if isinstance(value, SecretStr):
        return without_credentials(value.get_secret_value()) if location == URI else HIDDEN
    if isinstance(value, str) and "://" in value:
        return without_credentials(value)
    return str(value) if isinstance(value, Path) else value


def as_dict(settings: Settings) -> dict[str, Any]:
    """Nested as in the TOML file."""
    nested: dict[str, Any] = {}
    for setting in shown(settings):
        *sections, name = map(str, setting.location)
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = setting.value
    return nested
