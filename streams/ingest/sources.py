"""Sources: topics of other applications, and how their records become messages, read from a TOML file."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import jmespath
import orjson
from jmespath import functions
from jmespath.exceptions import JMESPathError
from jmespath.visitor import TreeInterpreter
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

from afterword.schemas import InvalidRecord
from afterword.schemas.decoding import loads
from afterword.schemas.messages import Role
from afterword.streams.errors import ConfigurationError
from afterword.streams.settings import Kafka, Section, Settings, variable

UNMAPPED = "unmapped"
"""Error type of a record whose expression finds nothing, or something that does not fit the field."""
FILE = variable(("ingest", "file"))


class Functions(functions.Functions):  # type: ignore[misc]  # jmespath has no types
    """JMESPath's functions, and `from_json`."""

    @functions.signature({"types": ["string", "null"]})  # type: ignore[untyped-decorator]  # as above
    def _func_from_json(self, text: str | None) -> Any:
        """Parse JSON in a string; null if it is not JSON."""
        try:
            return None if text is None else loads(text.encode())
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return None


INTERPRETER = TreeInterpreter(jmespath.Options(custom_functions=Functions()))
"""Shared, because `search` makes a new one each time, which takes more than half of its time."""
TOPIC_NAME = re.compile(r"[\w.-]+", re.ASCII)
"""Any name that Kafka allows; everything else in `topics` is a pattern."""

DEAD_LETTERS = ".dlq"

Format = Literal["json", "avro", "json-schema", "protobuf"]
NEEDS_REGISTRY = ("avro", "protobuf")
"""Formats that cannot be read without the schema."""
Unit = Literal["iso", "s", "ms", "us", "ns"]


class Expression:
    """A JMESPath expression, compiled once."""

    def __init__(self, text: object) -> None:
        """Raises: ValueError."""
        if not isinstance(text, str):
            raise ValueError("must be a JMESPath expression in quotes")
        try:
            self._parsed = jmespath.compile(text).parsed
        except JMESPathError as error:
            raise ValueError(f"not JMESPath: {str(error).splitlines()[0]}") from None
        self.text = text

    def __str__(self) -> str:
        return self.text

    def find(self, about: Mapping[str, Any]) -> Any:
        """Return what the expression finds in a record, or None. Raises: InvalidRecord."""
        try:
            return INTERPRETER.visit(self._parsed, about)
        except (JMESPathError, RecursionError, OverflowError) as error:  # the error's text quotes values of the record
            raise InvalidRecord(UNMAPPED, f"{self.text}: {type(error).__name__}") from None


Found = Annotated[Expression, BeforeValidator(Expression)]


def _table(given: object) -> object:
    return {"path": given} if isinstance(given, str) else given


class Table(Section):
    model_config = ConfigDict(arbitrary_types_allowed=True)


class RoleOf(Table):
    path: Found
    values: Mapping[str, Role] = {}


class TimeOf(Table):
    path: Found
    unit: Unit = "iso"


class Fields(Table):
    """The fields of a message in `[sources.map]`, each with the expression that finds it."""

    id: Found
    conversation_id: Found
    user_id: Found
    role: Annotated[RoleOf, BeforeValidator(_table)]
    content: Found
    sent_at: Annotated[TimeOf, BeforeValidator(_table)] | None = None
    tenant_id: Found | None = None
    agent_id: Found | None = None
    is_continuation: Found | None = None
    sentiment: Found | None = None
    flows: Found | None = None
    tools: Found | None = None
    skip_summarization: Found | None = None
    metadata: Found | None = None


class Changes(Table):
    """The table `[sources.edits]` or `[sources.deletions]`: which records edit or delete the message with their id."""

    when: Found


class Source(Table):
    """One of the `[[sources]]`."""

    topics: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    format: Format = "json"
    bulk: bool = False
    skip: Found | None = None
    map: Fields
    edits: Changes | None = None
    deletions: Changes | None = None

    def takes(self, topic: str) -> bool:
        """Return whether the topic is named or matches a pattern."""
        return any(topic == one if TOPIC_NAME.fullmatch(one) else re.fullmatch(one, topic) for one in self.topics)

    @property
    def named(self) -> Sequence[str]:
        """The topics given by name, without the patterns."""
        return [topic for topic in self.topics if TOPIC_NAME.fullmatch(topic)]


def load_sources(settings: Settings) -> tuple[Source, ...]:
    """Read the sources; there are none if the file does not exist. Raises: ConfigurationError."""
    file = settings.ingest.file
    try:
        return parse_sources(file.read_text(encoding="utf-8"), str(file))
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigurationError(setting=FILE, problem=f"{file}: {problem}") from None


def parse_sources(text: str, file: str) -> tuple[Source, ...]:
    """Parse the tables `[[sources]]` of TOML; all others belong to the settings. Raises: ConfigurationError."""
    try:
        given = tomllib.loads(text).get("sources", [])
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(setting=file, problem=str(error)) from None
    if not isinstance(given, list):
        raise ConfigurationError(setting=file, problem="sources: must be written [[sources]]")
    return tuple(_source(table, f"{file}, source {number}") for number, table in enumerate(given, start=1))


def _source(table: object, where: str) -> Source:
    try:
        source = Source.model_validate(table)
        for topic in source.topics:
            re.compile(topic)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field, problem = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise ConfigurationError(setting=where, problem=f"{field}: {problem}") from None
    except re.error as error:
        raise ConfigurationError(setting=where, problem=f"topics: {error}") from None
    return source


def require_sources(settings: Settings) -> tuple[Source, ...]:
    """Read the sources. Raises: ConfigurationError, also if there are none."""
    sources = load_sources(settings)
    if not sources:
        problem = f"{settings.ingest.file} has no [[sources]]; make one with: afterword init"
        raise ConfigurationError(setting=FILE, problem=problem)
    return sources


def require_registry(settings: Settings, sources: Sequence[Source]) -> None:
    """Require a registry if a source needs one. Raises: ConfigurationError."""
    for source in sources:
        if settings.registry.url is None and source.format in NEEDS_REGISTRY:
            problem = f"a source with the format {source.format} needs it"
            raise ConfigurationError(setting=variable(("registry", "url")), problem=problem)


def source_topics(sources: Sequence[Source], existing: Collection[str], ours: Collection[str]) -> list[str]:
    """Return the topics that are named, existing or not, and those that match a pattern.

    `ours` are topics that Afterword writes. Patterns match neither these nor dead-letter queues.
    """
    named = {topic for source in sources for topic in source.named}
    foreign = {topic for topic in existing if topic not in ours and not topic.endswith(DEAD_LETTERS)}
    return sorted(named | {topic for topic in foreign if any(source.takes(topic) for source in sources)})


def match_topics(sources: Sequence[Source], existing: Collection[str], ours: Collection[str]) -> dict[str, int]:
    """Return the topics that are read, each with the index of its source. `ours` is as in `source_topics`.

    Raises: ConfigurationError for a topic of two sources, one of our own, or a named one that does not exist.
    """
    found: dict[str, int] = {}
    for topic in source_topics(sources, existing, ours):
        first, *others = [index for index, source in enumerate(sources) if source.takes(topic)]
        where = f"source {first + 1}"
        if others:
            problem = f"topic {topic} is one of source {others[0] + 1}, too"
            raise ConfigurationError(setting=where, problem=problem)
        if topic in ours:
            raise ConfigurationError(setting=where, problem=f"topic {topic} is one that Afterword writes")
        if topic not in existing:
            raise ConfigurationError(setting=where, problem=f"topic {topic} does not exist")
        found[topic] = first
    return found


def our_topics(kafka: Kafka) -> set[str]:
    """Return the topics that a source would read in a loop."""
    announced = {kafka.summaries_topic, kafka.deletions_topic, kafka.conversations_topic}
    current = {kafka.current_episodes_topic, kafka.current_conversations_topic}
    return {kafka.messages_topic, kafka.episodes_topic, *announced, *current}
