"""What the library reads of a chat: any objects with these attributes will do."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, Protocol

FactKind = Literal["identity", "relation", "constraint", "preference", "plan", "event"]
FactStatus = Literal["stated", "implied", "ended"]


class Spoken(Protocol):
    """A message, as far as calls of tools and their results are told apart."""

    @property
    def role(self) -> str:
        """`user`, `assistant`, `system` or `tool`."""

    @property
    def tools(self) -> Sequence[str]:
        """Names of the tools that it calls."""


class Message(Spoken, Protocol):
    """A message of an episode."""

    @property
    def id(self) -> str: ...

    @property
    def content(self) -> str: ...

    @property
    def user_id(self) -> str: ...

    @property
    def agent_id(self) -> str | None: ...

    @property
    def author(self) -> str | None:
        """Display name of who wrote it."""

    @property
    def sent_at(self) -> datetime: ...


class Episode(Protocol):
    """Consecutive messages, oldest first."""

    @property
    def messages(self) -> Sequence[Message]: ...

    @property
    def overlap(self) -> Sequence[Message]:
        """The last messages of the episode before."""


class PersonalFact(NamedTuple):
    """A short statement about a person."""

    statement: str
    kind: FactKind
    attribute: str | None
    """Name of the value that it gives, such as `home_city`; None for none."""
    status: FactStatus
    about: str | None
    """The person it is about; None for the user."""
    user_id: str
    said_by: str
    """Role of the messages that state it."""
    message_ids: tuple[str, ...]
