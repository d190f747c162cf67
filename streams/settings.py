"""Every setting with its default, bounds and purpose; loading, environment variables, and display without secrets.

docs/settings.md and the chart's schema are generated from this module.
"""

import math
import os
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import reduce
from ipaddress import ip_address
from pathlib import Path
from stat import S_ISREG
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, Self, get_args
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from afterword.streams import prompt_template
from afterword.streams.errors import ConfigurationError
from afterword.streams.installed import extra_required
from afterword.streams.triggers import DEFAULT, TRIGGER_PRESETS, Node, TriggerPreset, parse_trigger, read_trigger
from afterword_text.redaction import check_patterns, entities_in

if TYPE_CHECKING:
    from afterword.streams.redactor import RecordRedaction, Redactor

PREFIX = "AFTERWORD_"
CONFIG_FILE_VARIABLE = "AFTERWORD_CONFIG"
DEV_CONFIG = Path(".afterword/afterword.toml")
"""Settings that `afterword dev` writes."""
ADDRESSES = (
    "AFTERWORD_KAFKA__BOOTSTRAP_SERVERS",
    "AFTERWORD_MONGO__URI",
    "AFTERWORD_QDRANT__URL",
    "AFTERWORD_SQLITE__PATH",
)
"""Variables that each name a server."""
FILE_SUFFIX = "_FILE"
"""Marks a variable that names the file with a secret, as Docker's and Kubernetes' secrets do."""
READ_ELSEWHERE = re.compile(PREFIX + "(CACHE_DIR|TEST_.*)")
"""Variables that the embedded stack and the tests read."""
KUBERNETES = re.compile(
    PREFIX + r"(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)=.*|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?=.*|=\w+://.*))", re.S
)
"""Variables that Kubernetes gives every pod in the namespace of a Service named afterword or afterword-*."""

LOCAL_EMBEDDER = "use-multilingual-v3-recall-1"

Location = tuple[int | str, ...]
"""A setting's section, if it is in one, and its name."""
Seconds = Annotated[float, Field(gt=0)]
CALLS_IN_A_ROW = 20
"""Calls of a slow LLM that fit into a summary's time: 16 parts of a long episode, their summary, and a few repeats."""
DAY_MS = 24 * 60 * 60 * 1000
SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SaslMechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM"]
EpisodeScope = Literal["conversation", "agent"]
TopicShift = Literal["flags", "off"]
OnChangedRepeat = Literal["edit", "reject"]


def _parsed_trigger(written: object) -> Any:
    trigger = read_trigger(written)
    parse_trigger(trigger, tokens=1)
    return trigger


def checked(check: Callable[[Any], object]) -> AfterValidator:
    """Refuse a value for which the check raises ValueError."""

    def keep(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(keep)


Trigger = Annotated[Any, BeforeValidator(_parsed_trigger)]
"""A whole number, a preset's name, a table or a list. Its type keeps pydantic-settings from decoding and merging it,
because a trigger from the environment replaces the file's as a whole."""


class Rule(NamedTuple):
    """Settings of a section that require or exclude each other.

    The rule applies if each setting in `when` has one of the listed values, all of `given` are set, and none of
    `without` is. Then all of `needs` must be set, and none of `refuses`, because it would have no effect: whoever sets
    a password expects it to be used. Before any pod starts, the chart checks the rules that have no `given`.
    """

    when: Mapping[str, Sequence[str]] = MappingProxyType({})
    given: Sequence[str] = ()
    without: Sequence[str] = ()
    needs: Sequence[str] = ()
    refuses: Sequence[str] = ()

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises: ValueError if these settings of the section break the rule."""
        applies = (
            all(values[name] in choices for name, choices in self.when.items())
            and all(values[name] is not None for name in self.given)
            and all(values[name] is None for name in self.without)
        )
        if not applies:
            return
        names = [f"{name} {values[name]}" for name in self.when] + list(self.given)
        for name in self.needs:
            if not values[name]:
                raise ValueError(f"{' and '.join(names)} needs {name}")
        for name in self.refuses:
            if values[name] is not None:
                problem = f"has no use with {names[-1]}" if names else f"needs {' and '.join(self.without)}"
                raise ValueError(f"{name} {problem}")


class Bound(NamedTuple):
    """A setting that must be at most another one, or a fraction of it."""

    smaller: str
    larger: str
    fraction_of: int = 1

    def check(self, values: Mapping[str, Any]) -> None:
        """Raises: ValueError if these settings of the section break the rule."""
        smaller, larger = values[self.smaller], values[self.larger]
        if smaller is not None and self.fraction_of * smaller > larger:
            than = self.larger if self.fraction_of == 1 else f"1/{self.fraction_of} of {self.larger}"
            raise ValueError(f"{self.smaller} ({smaller:.15g}) is larger than {than} ({larger:.15g})")


class Section(BaseModel):
    model_config = ConfigDict(defer_build=True, extra="forbid", frozen=True, allow_inf_nan=False)
    rules: ClassVar[Sequence[Rule | Bound]] = ()

    @model_validator(mode="after")
    def keeps_rules(self) -> Self:
        values = dict(self)
        for rule in self.rules:
            rule.check(values)
        return self


class ServerSection(Section):
    """Settings of a server that clients wait for."""

    _answer_seconds: float | None = PrivateAttr(None)

    @property
    def answer_seconds(self) -> float | None:
        """Time within which the server must first answer; None if any operation's timeout will do."""
        return self._answer_seconds

    def answering_within(self, seconds: float | None) -> Self:
        """Return the same settings for a caller that waits no longer than this for the first answer."""
        changed = self.model_copy()
        changed._answer_seconds = seconds  # noqa: SLF001 – an object of the same class
        return changed


REBALANCE_SECONDS = 60.0
"""Longest time that a rebalance waits for a worker to rejoin."""
HEARTBEAT_SECONDS = 0.3
"""Interval of the heartbeats that tell a group's member about a rebalance, whatever the session timeout: the partitions
of a dead worker wait for it."""


TLS = ("ssl_ca_file", "ssl_cert_file", "ssl_key_file", "ssl_key_password")
PASSWORD = ("username", "password")
TOKEN = ("oauth_token_endpoint", "oauth_client_id", "oauth_client_secret")
OF_TOKENS = (*TOKEN, "oauth_scope", "oauth_token_file")


class Kafka(ServerSection):
    rules: ClassVar = (
        Rule(when={"security_protocol": ("PLAINTEXT", "SASL_PLAINTEXT")}, refuses=TLS),
        Rule(
            when={"security_protocol": ("PLAINTEXT", "SSL")},
            refuses=("sasl_mechanism", *PASSWORD, *OF_TOKENS, "aws_region"),
        ),
        Rule(when={"security_protocol": ("SASL_SSL", "SASL_PLAINTEXT")}, needs=("sasl_mechanism",)),
        Rule(
            when={"sasl_mechanism": ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")},
            needs=PASSWORD,
            refuses=(*OF_TOKENS, "aws_region"),
        ),
        Rule(when={"sasl_mechanism": ("OAUTHBEARER",)}, refuses=(*PASSWORD, "aws_region")),
        Rule(when={"sasl_mechanism": ("OAUTHBEARER",)}, without=("oauth_token_file",), needs=TOKEN),
        Rule(given=("oauth_token_file",), refuses=(*TOKEN, "oauth_scope")),
        Rule(when={"sasl_mechanism": ("AWS_MSK_IAM",)}, needs=("aws_region",), refuses=(*PASSWORD, *OF_TOKENS)),
        Rule(without=("ssl_cert_file",), refuses=("ssl_key_file", "ssl_key_password")),
    )
    bootstrap_servers: str = Field("127.0.0.1:9092", description="brokers as host:port, separated by commas")
    messages_topic: str = Field("messages", description="input: chat messages")
    prefix: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]{0,100}$",
        description="beginning of the names of all other topics, of the consumer groups and of the transactions",
    )
    partitions: int = Field(8, ge=1, description="partitions of each topic that `afterword topics create` creates")
    replication_factor: int = Field(1, ge=1, description="replicas of each of these topics; 3 in production")
    min_insync_replicas: int = Field(
        1, ge=1, description="in-sync replicas that a write to these topics needs; 2 in production"
    )
    session_timeout_seconds: Seconds = Field(
        10.0, ge=6, description="a worker that sends no heartbeat for this long loses its partitions"
    )
    request_timeout_seconds: Seconds = Field(20.0, ge=1, description="timeout of a request to a broker")
    group_instance_id: str | None = Field(None, description="static group membership: a restart causes no rebalance")
    client_rack: str | None = Field(
        None, min_length=1, description="zone of the process: it reads from replicas there, where brokers have racks"
    )
    security_protocol: SecurityProtocol = Field("PLAINTEXT", description="protocol of every connection to the brokers")
    sasl_mechanism: SaslMechanism | None = Field(None, description="required with SASL_PLAINTEXT and SASL_SSL")
    username: str | None = Field(None, min_length=1, description="user name for PLAIN and SCRAM")
    password: SecretStr | None = Field(None, min_length=1, description="password for PLAIN and SCRAM")
    oauth_token_endpoint: str | None = Field(
        None,
        pattern="^https?://[^/@]+(/|$)",
        description="token endpoint for OAUTHBEARER (client credentials); https in production",
    )
    oauth_client_id: str | None = Field(None, min_length=1, description="client id for OAUTHBEARER")
    oauth_client_secret: SecretStr | None = Field(None, min_length=1, description="client secret for OAUTHBEARER")
    oauth_scope: str | None = Field(None, description="scope for OAUTHBEARER, if the token endpoint requires one")
    oauth_token_file: Path | None = Field(
        None,
        description="file with a token for OAUTHBEARER, in place of an endpoint, such as a service-account token",
    )
    aws_region: str | None = Field(
        None, min_length=1, description="AWS region of the cluster, for AWS_MSK_IAM; needs the extra `aws`"
    )
    ssl_ca_file: Path | None = Field(None, description="PEM file: trusted CAs for the brokers; default: the system's")
    ssl_cert_file: Path | None = Field(None, description="PEM file: client certificate, if the brokers require one")
    ssl_key_file: Path | None = Field(
        None, description="PEM file: key of that certificate; default: in the certificate's file"
    )
    ssl_key_password: SecretStr | None = Field(None, description="password of that key")

    @property
    def revoke_seconds(self) -> float:
        """Longest time that a member may keep working after it has learned of a rebalance.

        By then the others have asked to join, and their requests are answered only when the last member has joined. So
        they wait for a heartbeat, this time and that member's last commit, all within their request timeout. A member
        whose request times out considers the coordinator dead and starts over, and another member repeats its work in
        flight.
        """
        return min(REBALANCE_SECONDS, self.request_timeout_seconds - HEARTBEAT_SECONDS) / 2

    @property
    def episodes_topic(self) -> str:
        """Closed episodes, written in transactions."""
        return f"{self.prefix}episode.closed"

    @property
    def summaries_topic(self) -> str:
        """Summaries, for downstream subscribers."""
        return f"{self.prefix}summary.created"

    @property
    def deletions_topic(self) -> str:
        """Summaries that were deleted with their last message."""
        return f"{self.prefix}summary.deleted"

    @property
    def conversations_topic(self) -> str:
        """Conversations: title, rolling summary and counts after each episode."""
        return f"{self.prefix}conversation.updated"

    @property
    def current_episodes_topic(self) -> str:
        """The last summary of each episode by its id; compacted."""
        return f"{self.prefix}afterword.episodes"

    @property
    def current_conversations_topic(self) -> str:
        """Each conversation as it is now, with its rolling summary; compacted."""
        return f"{self.prefix}afterword.conversations"

    @property
    def current_topics(self) -> tuple[str, str]:
        """The compacted topics of episodes and conversations."""
        return self.current_episodes_topic, self.current_conversations_topic

    @property
    def own_topics(self) -> set[str]:
        """The topics that a source of ours would read in a loop."""
        announced = {self.summaries_topic, self.deletions_topic, self.conversations_topic}
        return {self.messages_topic, self.episodes_topic, *announced, *self.current_topics}

    @property
    def undelivered_topic(self) -> str:
        """The dead-letter queue of webhooks, for events that an endpoint did not accept."""
        return self.dead_letters(f"{self.summaries_topic}.webhooks")

    def dead_letters(self, topic: str) -> str:
        """The topic's dead-letter queue."""
        return f"{topic}.dlq"

    def group_of(self, role: str) -> str:
        """The consumer group of a role, which also names its changelogs and transactions. That of a webhook adds the
        endpoint's name."""
        return f"{self.prefix}afterword-{role}"

    def changelog(self, table: str) -> str:
        return f"{self.group_of('segmenter')}-{table}-changelog"


class Mongo(ServerSection):
    uri: SecretStr = Field(
        SecretStr("mongodb://127.0.0.1:27017"), description="connection string with user, password and TLS options"
    )
    database: str = Field("afterword", min_length=1, description="name of the database")


class Qdrant(ServerSection):
    url: str | None = Field(None, description="address of a Qdrant server; default: http://127.0.0.1:6333")
    api_key: SecretStr | None = Field(None, description="API key of the server; needs an https url in production")
    collection: str = Field(
        "episodes",
        min_length=1,
        description="prefix of the collection's name, which ends with the embedder's model, if any",
    )


class Sqlite(Section):
    path: Path | None = Field(
        None,
        description="file in place of MongoDB and Qdrant, for the processes of one machine; see docs/how-to/sqlite.md",
    )


class Episodes(Section):
    rules: ClassVar = (Bound("overlap", "max_episode_size"), Bound("min_episode_size", "max_episode_size"))
    trigger: Trigger = Field(
        10,
        description="end of an episode: a number of messages, a preset or conditions; see docs/segmentation.md",
        json_schema_extra={"type_name": "integer, name of a preset, or JSON"},
    )
    trigger_tokens: int = Field(
        4000, ge=1, description="pending tokens that also close an episode, when trigger is a number or `default`"
    )
    auto_summarize: bool = Field(True, description="false: only a flush or the idle timeout closes an episode")
    min_episode_size: int = Field(
        2, ge=1, description="messages; only idle timeout, flush or tokens close a shorter episode"
    )
    max_episode_size: int = Field(
        20, ge=1, description="messages; an episode this long closes even in the middle of a topic"
    )
    max_episode_tokens: int = Field(4000, ge=1, description="tokens of an episode, unless a single message has more")
    topic_shift: TopicShift = Field(
        "flags", description="whether a topic shift ends an episode: flags: if is_continuation = false; off: never"
    )
    overlap: int = Field(2, ge=0, description="messages of the previous episode that the LLM is also given")
    idle_seconds: Seconds = Field(300.0, description="idle timeout, after which pending messages close as an episode")
    dedupe_window: int = Field(
        10_000,
        ge=1,
        le=100_000,  # when a conversation is forgotten, all of them go in one transaction
        description="number of a conversation's last messages whose ids are kept to recognize duplicates",
    )
    on_changed_repeat: OnChangedRepeat = Field(
        "edit",
        description="a message with a known id and another text: edit: edits the earlier one; reject: is a dead letter",
    )
    forget_after_days: float = Field(
        30.0,
        ge=0,
        le=36_500,
        description="a conversation idle for this long is forgotten, except for its number of episodes; 0: never",
    )
    scope: EpisodeScope = Field(
        "conversation",
        description="unit with its own pending messages and episodes; each scope needs its own prefix and stores",
    )
    max_agents: int = Field(
        16, ge=1, le=100, description="maximum number of active agents of a conversation at a time, with scope = agent"
    )

    @property
    def forget_after_ms(self) -> int:
        """`forget_after_days` in milliseconds; 0 means never."""
        return max(1, round(self.forget_after_days * DAY_MS)) if self.forget_after_days else 0

    def conditions(self) -> Node:
        return parse_trigger(self.trigger, self.trigger_tokens)

    @property
    def preset(self) -> TriggerPreset:
        """The preset that `trigger` names, or else the default one. It has values for settings that are not set."""
        return TRIGGER_PRESETS.get(self.trigger, DEFAULT) if isinstance(self.trigger, str) else DEFAULT


WITH_MODEL = Rule(when={"provider": ("openai", "ollama")}, needs=("model",))


class Llm(Section):
    rules: ClassVar = (WITH_MODEL, Bound("max_output_tokens", "context_tokens", fraction_of=2))
    provider: Literal["extractive", "openai", "ollama"] = Field(
        "extractive", description="what writes the summaries; extractive needs no LLM"
    )
    base_url: str | None = Field(None, description="address of the server; default: the provider's own")
    model: str | None = Field(None, description="name of the model; required for openai and ollama")
    title_model: str | None = Field(
        None, min_length=1, description="model of the same server that writes titles from summaries; default: model"
    )
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    temperature: float = Field(0.2, ge=0, le=2, description="sampling temperature; lower is more literal")
    max_output_tokens: int | None = Field(
        None,
        ge=64,
        description="maximum tokens of an answer; default: 500 for plain text, for JSON as many as its texts can need",
    )
    context_tokens: int = Field(
        32_768,
        ge=4096,
        description="context window of the model; a longer episode is summarized in parts",
    )
    timeout_seconds: Seconds = Field(60.0, description="timeout of a call")
    attempts: int = Field(
        4, ge=1, description="maximum number of calls, including the first, on connection errors, 429 and 5xx"
    )
    retry_budget_seconds: Seconds = Field(180.0, description="no retry begins after this time")
    max_concurrency: int = Field(8, ge=1, description="concurrent calls")
    prompt_price: float | None = Field(
        None, ge=0, description="price of a million tokens of prompts, for `afterword usage`"
    )
    cached_price: float | None = Field(
        None, ge=0, description="price of a million of those from the server's cache; default: prompt_price"
    )
    answer_price: float | None = Field(None, ge=0, description="price of a million tokens of answers")
    currency: str = Field("", max_length=8, description="currency of these prices, shown after a cost, such as EUR")

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> float | None:
        """Price of these tokens; None without prices. The prompts' tokens include the cached ones."""
        if self.prompt_price is None or self.answer_price is None:
            return None
        cached_price = self.prompt_price if self.cached_price is None else self.cached_price
        read = (prompt_tokens - cached_tokens) * self.prompt_price + cached_tokens * cached_price
        return (read + completion_tokens * self.answer_price) / 1_000_000

    def cost_shown(self, cost: float) -> str:
        """Format a cost with two decimals, or as many as its first two significant digits need, and the currency."""
        decimals = 1 - math.floor(math.log10(cost)) if 0 < cost < 1 else 2
        return f"{cost:,.{decimals}f} {self.currency}".strip()

    @property
    def summary_seconds(self) -> float:
        """Deadline of a summary: time for its retries and for CALLS_IN_A_ROW calls that take their whole timeout."""
        if self.provider == "extractive":
            return 0.0
        return self.retry_budget_seconds + CALLS_IN_A_ROW * self.timeout_seconds


class EmbedderSettings(Section):
    rules: ClassVar = (WITH_MODEL, Rule(when={"provider": ("onnx",)}, needs=("directory",)))
    provider: Literal["none", "openai", "ollama", "local", "onnx"] = Field(
        "local",
        description="what makes the messages' vectors; local: the process itself; onnx: the process, with the model in "
        "directory; none: search by words only",
    )
    base_url: str | None = Field(None, description="address of the server; default: the provider's own")
    model: str | None = Field(
        None, description="name of the model; required for openai and ollama; for onnx the default is the folder's name"
    )
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    directory: Path | None = Field(
        None, description="folder of an ONNX model, which `afterword embedder get` fills; required for onnx"
    )
    query_prefix: str | None = Field(
        None, description="text before each query; default: what is known for the model's name"
    )
    passage_prefix: str | None = Field(
        None, description="text before each message; default: what is known for the model's name"
    )
    timeout_seconds: ClassVar[float] = 30.0
    """Timeout of a call."""

    @property
    def vectors_model(self) -> str | None:
        """Model of the dense vectors, which is part of the collection's name; None without dense vectors."""
        if self.provider == "local":
            return LOCAL_EMBEDDER
        if self.provider == "onnx":
            return self.model or (self.directory.name if self.directory else None)
        return self.model if self.provider != "none" else None


MOST_RERANKED = 32
"""Maximum number of episodes that a reranking server is given."""


class RerankerSettings(Section):
    """The server that puts the best hits of `recall` in order, and limits on what it is given."""

    base_url: str | None = Field(None, description="address of the server before `/rerank`; default: no reranking")
    model: str | None = Field(None, min_length=1, description="name of the model, for a server that has several")
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    timeout_seconds: Seconds = Field(2.0, description="time for the server's answer; after it, the order stays")


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:  # the error's own text quotes the bytes
        raise ValueError(f"{file}: not UTF-8 text") from None


def _check_template(file: Path | None) -> None:
    if file is not None:
        prompt_template.check_template(_text_of(file))


def zone_of(name: str) -> tzinfo:
    """Return the time zone with this IANA name. Raises: ValueError."""
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError):
        raise ValueError(f"{name!r} is not a time zone such as Europe/Berlin") from None


TimeZone = Annotated[str, checked(zone_of)]
"""An IANA name."""


class SummarizerSettings(Section):
    on_llm_outage: Literal["fallback", "wait"] = Field(
        "fallback",
        description="while the LLM is unavailable or its budget is used up: fallback: summarize without it, and ask "
        "again later; wait: store nothing",
    )
    preset: Literal["episodic", "focus_points", "plain_3_5"] = Field(
        "episodic", description="style of the summaries; plain_3_5: plain text, for small models without JSON"
    )
    prompt_file: Annotated[Path | None, checked(_check_template)] = Field(
        None, description="file with a prompt template that replaces the preset's; see docs/summaries.md"
    )
    max_summary_length: int | None = Field(
        None, ge=400, le=10_000, description="length of the long summary; default: the trigger preset's, else 1000"
    )
    time_zone: TimeZone = Field(
        "UTC",
        description="time zone of times in prompts and, unless a reader names another, of days such as yesterday: UTC, "
        "or a name like Europe/Berlin",
    )

    @property
    def zone(self) -> tzinfo:
        return zone_of(self.time_zone)

    def template(self) -> str | None:
        """Return the prompt template that replaces the preset's, if any. Raises: ValueError if its file is gone."""
        return None if self.prompt_file is None else _text_of(self.prompt_file)


class Rolling(Section):
    max_tokens: int = Field(
        800, ge=50, description="length at which a rolling-summary row is complete and a new one begins"
    )


class QualitySettings(Section):
    enabled: bool = Field(True, description="false: summaries are measured but never refused")
    min_grounding: float = Field(
        0.8, ge=0, le=1, description="fraction of a summary's names, numbers and dates that must occur in its source"
    )


class Retry(Section):
    """Replacement of fallback summaries: when the LLM is asked again."""

    rules: ClassVar = (Bound("first_delay_seconds", "longest_delay_seconds"),)

    attempts: int = Field(
        100, ge=0, description="maximum number of attempts to ask the LLM again; 0: fallback summaries stay"
    )
    first_delay_seconds: Seconds = Field(30.0, description="delay before the first attempt; it doubles with each")
    longest_delay_seconds: Seconds = Field(3600.0, description="longest delay between two attempts")


class Budget(Section):
    """LLM tokens per clock hour (UTC), for all summarizers together."""

    tokens_per_hour: int | None = Field(
        None, ge=1, description="prompt and completion tokens of all tenants together; default: unlimited"
    )
    tenant_tokens_per_hour: int | None = Field(None, ge=1, description="the same for each tenant; default: unlimited")

    @property
    def limited(self) -> bool:
        return self.tokens_per_hour is not None or self.tenant_tokens_per_hour is not None


class Redaction(Section):
    where: Literal["off", "llm", "everywhere"] = Field(
        "off",
        description="llm: prompts contain placeholders; everywhere: only the messages topic contains the original",
    )
    entities: Annotated[str, checked(entities_in)] = Field(
        "all",
        description="entities to redact: all, or any of email, phone, card, iban, ip, url_secret, api_key, separated "
        "by commas",
    )
    phone_regions: str = Field(
        "US,GB,DE,FR,ES,IT,NL,PL,BR,IN",
        description="countries (ISO 3166, separated by commas) whose phone numbers are found without a country code",
    )
    patterns: Annotated[dict[str, str], checked(check_patterns)] = Field(
        {},
        description="your own regular expressions (RE2), by the name of their placeholder",
        json_schema_extra={"type_name": "JSON object"},
    )

    @field_validator("phone_regions")
    @classmethod
    def are_regions(cls, text: str) -> str:
        for region in filter(None, text.split(",")):
            if not re.fullmatch(r"\s*[A-Z]{2}\s*", region):
                raise ValueError(f"{region.strip()!r} is not a country code such as DE")
        return text

    def redactor(self) -> "Redactor":
        """Return the redactor. Raises: ConfigurationError for a country without telephone numbers."""
        from afterword.streams.redactor import Redactor  # producers do not have its libraries

        regions = [region.strip() for region in self.phone_regions.split(",") if region.strip()]
        try:
            return Redactor(entities_in(self.entities), self.patterns, regions)
        except ValueError as error:
            raise ConfigurationError(setting=variable(("redaction",)), problem=str(error)) from None

    def shown(self) -> Callable[[str], str]:
        """Return the redaction of texts that the server of an embedder or a reranker sees.

        Raises: ConfigurationError; ExtraMissing without the extra `worker`.
        """
        if self.where == "off":
            return str
        with extra_required("worker", "redaction"):
            return self.redactor().redacted

    def of_records(self) -> "RecordRedaction | None":
        """Return the redaction of incoming records; None unless everything is redacted. Raises: ConfigurationError."""
        # imported here because producers do not have its libraries
        from afterword.streams.redactor import RecordRedaction

        return RecordRedaction(self.redactor()) if self.where == "everywhere" else None


class Retention(Section):
    messages_days: float = Field(
        0,
        ge=0,
        le=36_500,
        description="days after `sent_at` after which a message is removed from MongoDB; 0: messages are kept",
    )
    episodes_days: float = Field(
        0,
        ge=0,
        le=36_500,
        description="days after its last message after which an episode is removed from MongoDB and Qdrant; 0: "
        "episodes are kept",
    )

    def messages_before(self, now: datetime) -> datetime | None:
        """Return the time such that messages sent before it have expired; None if messages never expire."""
        return _days_before(now, self.messages_days)

    def episodes_before(self, now: datetime) -> datetime | None:
        """Return the time such that episodes that ended before it have expired; None if episodes never expire."""
        return _days_before(now, self.episodes_days)

    @property
    def shortest_days(self) -> float:
        """Days until something expires; 0 if nothing does."""
        return min(filter(None, (self.messages_days, self.episodes_days)), default=0)


def _days_before(now: datetime, days: float) -> datetime | None:
    return now - timedelta(days=days) if days else None


class Health(Section):
    host: str = Field("127.0.0.1", description="address on which the health server listens")
    port: int = Field(0, ge=0, le=65535, description="port of the health server; 0: any free port, named in the log")


def is_loopback(host: str | None) -> bool:
    """Return whether an address, or the name `localhost`, is this machine's own."""
    try:
        return ip_address(host or "").is_loopback
    except ValueError:  # a name
        return host == "localhost"


class Serve(Section):
    """The HTTP server of `afterword serve`."""

    rules: ClassVar = (Rule(when={"auth": ("jwt",)}, needs=("jwt_issuer", "jwt_audience", "jwt_jwks_url")),)

    host: str = Field("127.0.0.1", description="address on which the server listens")
    port: int = Field(8080, ge=0, le=65535, description="port of the server; 0: any free port, named in the log")
    auth: Literal["none", "keys", "jwt"] = Field(
        "none", description="how requests are authenticated; none: only on a loopback address"
    )
    requests_per_minute: int = Field(
        6000, ge=0, description="maximum requests per key and minute, in one process; 0: unlimited"
    )
    trusted_proxies: str = Field(
        "",
        description="addresses or networks of proxies, separated by commas, whose X-Forwarded-For names the client",
    )
    cors_origins: str = Field(
        "", description="origins of web pages whose scripts may call the server, separated by commas"
    )
    docs: bool = Field(False, description="serve a page at /docs that describes the HTTP API")
    cookie_secret: SecretStr | None = Field(
        None,
        min_length=16,
        description="seals the page's cookies; must be the same on every server; default: a new one at each start",
    )
    mcp_user: str = Field(
        "", max_length=256, description="user whose memory agents use over MCP if there is no authentication"
    )
    mcp_tenant: str = Field("", max_length=256, description="tenant of that user; empty: none")
    mcp_url: str | None = Field(
        None, pattern="^https?://[^/@]+(/|$)", description="address of /mcp for clients; default: as they call it"
    )
    jwt_issuer: str | None = Field(None, min_length=1, description="`iss` that tokens must have")
    jwt_audience: str | None = Field(None, min_length=1, description="`aud` that tokens must have")
    jwt_jwks_url: str | None = Field(
        None, pattern="^https?://[^/@]+(/|$)", description="address of the issuer's keys; https in production"
    )
    jwt_tenant_claim: str = Field("tenant_id", description="claim with the tenant; empty: tokens have no tenant")
    jwt_user_claim: str = Field("sub", description="claim with the user; empty: tokens are not bound to a user")
    jwt_scope_claim: str = Field("scope", min_length=1, description="claim with the scopes, as words or a list")

    @property
    def origins(self) -> list[str]:
        return [origin.strip() for origin in self.cors_origins.split(",") if origin.strip()]

    @model_validator(mode="after")
    def possible(self) -> Self:
        if self.auth == "none" and not is_loopback(self.host):
            raise ValueError(f"auth = none admits everybody, and host {self.host} is not a loopback address")
        if self.auth == "none" and not ANY_ORIGIN.isdisjoint(self.origins):
            raise ValueError("auth = none admits everybody, so cors_origins must name pages, and not contain * or null")
        return self


ANY_ORIGIN = frozenset({"*", "null"})
"""Origins that anybody's page can have."""


class WebhookEndpoint(Section):
    """A receiver of events over HTTP."""

    url: str = Field(pattern=r"^https?://[^/@?#\s]+(/[^#\s]*)?(\?[^#\s]*)?$", max_length=2000)
    secret: SecretStr
    """`whsec_` and 24 to 64 bytes in base64. To rotate secrets, give two, separated by a comma; both of them sign."""
    since: AwareDatetime | None = None
    """Events announced before this time are not sent; None sends everything that the topics have."""

    @property
    def host(self) -> str:
        return urlsplit(self.url).hostname or ""

    @property
    def signing_secrets(self) -> list[str]:
        return [part.strip() for part in self.secret.get_secret_value().split(",")]

    @field_validator("url")
    @classmethod
    def has_host_and_port(cls, url: str) -> str:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:  # raises ValueError if the port is not a number
            raise ValueError("is not the address of a server")
        return url

    @field_validator("secret")
    @classmethod
    def are_secrets(cls, secret: SecretStr) -> SecretStr:
        for part in secret.get_secret_value().split(","):
            try:
                size = len(b64decode(part.strip().removeprefix("whsec_"), validate=True))
            except ValueError:  # the error's text would quote the secret
                raise ValueError("is not whsec_ followed by base64") from None
            least, most = SIGNING_SECRET_BYTES
            if not least <= size <= most:
                raise ValueError(f"has {size} bytes; it must have {least} to {most}")
        return secret


SIGNING_SECRET_BYTES = (24, 64)
"""Fewest and most bytes in the Standard Webhooks specification."""


class Webhooks(Section):
    """Delivery of summaries to HTTP endpoints by `afterword worker webhooks`."""

    endpoints: dict[str, WebhookEndpoint] = Field(
        {},
        description='endpoints by name, such as {"crm": {"url": …, "secret": …}}; see docs/how-to/webhooks.md',
        json_schema_extra={"type_name": "JSON object, with secrets", "format": "password"},
    )
    private_hosts: str = Field(
        "",
        description="hosts of endpoints, separated by commas, that may have private addresses and plain http",
    )
    retry_seconds: Seconds = Field(86_400.0, description="how long an event is retried before it becomes a dead letter")

    @property
    def allowed_hosts(self) -> frozenset[str]:
        return frozenset(host.strip().lower() for host in self.private_hosts.split(",") if host.strip())

    @field_validator("endpoints")
    @classmethod
    def have_names(cls, endpoints: dict[str, WebhookEndpoint]) -> dict[str, WebhookEndpoint]:
        for name in endpoints:
            if not re.fullmatch("[a-z0-9][a-z0-9-]{0,39}", name):
                raise ValueError("an endpoint's name has at most 40 characters: letters a to z, digits and hyphens")
        return endpoints

    @model_validator(mode="after")
    def are_encrypted(self) -> Self:
        for name, endpoint in self.endpoints.items():
            if endpoint.url.startswith("http:") and endpoint.host not in self.allowed_hosts:
                raise ValueError(f"the url of endpoint {name} is not https, and private_hosts does not name its host")
        return self


class Ingest(Section):
    """Mapping of other applications' topics to messages, by `afterword worker ingest`."""

    file: Path = Field(
        Path("afterword.toml"), description="TOML file with the [[sources]]; see docs/how-to/connect-a-topic.md"
    )
    bulk_lag: int = Field(
        40,
        ge=1,
        description="messages that the workers may be behind while bulk sources are read; an unfinished episode counts "
        "as ten",
    )


class RegistrySettings(Section):
    """Schema registry of sources in Avro or Protobuf."""

    rules: ClassVar = (
        Rule(without=("username",), refuses=("password",)),
        Rule(without=("password",), refuses=("username",)),
    )

    url: str | None = Field(
        None, pattern=r"^https?://[^/@]+(/|$)", description="address of the registry, without a user and a password"
    )
    username: str | None = Field(None, min_length=1, description="user name for basic authentication")
    password: SecretStr | None = Field(None, min_length=1, description="password, or API key, of that user")


class Logs(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="lowest level that is logged")
    format: Literal["auto", "json", "console"] = Field("auto", description="auto: console on a terminal, else JSON")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        env_ignore_empty=True,
        allow_inf_nan=False,
    )

    state_dir: Path = Field(
        Path(".afterword/state"), description="RocksDB directory of the segmenter; may be lost, must not be shared"
    )
    drain_seconds: Seconds = Field(30.0, description="time to finish the work in flight after SIGTERM")
    config: Path | None = Field(None, exclude=True, description="TOML file; environment variables override it")
    kafka: Kafka = Kafka()
    episodes: Episodes = Episodes()
    mongo: Mongo = Mongo()
    qdrant: Qdrant = Qdrant()
    sqlite: Sqlite = Sqlite()
    llm: Llm = Llm()
    embedder: EmbedderSettings = EmbedderSettings()
    reranker: RerankerSettings = RerankerSettings()
    summarizer: SummarizerSettings = SummarizerSettings()
    rolling: Rolling = Rolling()
    quality: QualitySettings = QualitySettings()
    retry: Retry = Retry()
    budget: Budget = Budget()
    redaction: Redaction = Redaction()
    retention: Retention = Retention()
    health: Health = Health()
    serve: Serve = Serve()
    webhooks: Webhooks = Webhooks()
    ingest: Ingest = Ingest()
    registry: RegistrySettings = RegistrySettings()
    logs: Logs = Logs()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 – the signature is the library's
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 – the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 – the signature is the library's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = config_file()
        toml = [TomlConfigSettingsSource(settings_cls, toml_file=file)] if file else []
        for source in toml:
            source.init_kwargs.pop("sources", None)  # ingest reads its sources itself
        environment = EnvSettingsSource(settings_cls)
        environment.env_vars = with_secrets_from_files(settings_cls, environment.env_vars)
        return (init_settings, environment, *toml)


def load_settings(**overrides: Any) -> Settings:
    """Read the environment and the configuration file; keyword arguments override both.

    Raises: ConfigurationError with the first setting that is wrong.
    """
    file = config_file()
    unknown = sorted(unknown_variables())
    if unknown:
        raise ConfigurationError(setting=unknown[0], problem="no such setting")
    try:
        if file and not S_ISREG(Path(file).stat().st_mode):
            raise ConfigurationError(setting=CONFIG_FILE_VARIABLE, problem="not a file")
        return Settings(**overrides)
    except OSError as error:  # the file itself; errors of secrets and templates are handled elsewhere
        raise ConfigurationError(setting=CONFIG_FILE_VARIABLE, problem=str(error.strerror)) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigurationError(
            setting=variable(first["loc"]), problem=first["msg"].removeprefix("Value error, ")
        ) from None
    except ValueError as error:  # a file that is not TOML, or a variable that is not JSON
        raise ConfigurationError(setting=file or PREFIX + "*", problem=str(error)) from None


def config_file() -> str | None:
    """Return the configuration file: the one that the environment names, or else the one that `afterword dev` wrote.

    The latter counts only if no variable names a server and this user owns the file.
    """
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    if named is not None or any(os.environ.get(address) for address in ADDRESSES):
        return named or None
    file = dev_config()
    return str(file) if file and file.stat().st_uid == os.getuid() else None


def dev_config() -> Path | None:
    """Find the file that `afterword dev` wrote in this directory or the nearest one above it, as git does."""
    here = Path.cwd()
    paths = (Path(os.path.relpath(above / DEV_CONFIG)) for above in (here, *here.parents))
    return next((path for path in paths if path.is_file()), None)


def address_source(address: str) -> str:
    """Say where a server's address comes from, and what to do if it does not answer. `address` is its variable."""
    if os.environ.get(address):
        return f"is from {address}"
    file = config_file()
    if not file:
        return f"is the default: run `afterword dev` in this directory, or set {address}"
    return f"is from {file}" + (", is `afterword dev` running?" if file.endswith(str(DEV_CONFIG)) else "")


def variable(location: Location) -> str:
    """Return a setting's environment variable. Messages use it as the setting's name, even if a file has the value."""
    return PREFIX + "__".join(str(part).upper() for part in location)


def locations(model: type[BaseModel], section: Location = ()) -> Iterator[tuple[Location, FieldInfo]]:
    """Yield every section and setting, a section before its settings."""
    for name, field in model.model_fields.items():
        yield (*section, name), field
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from locations(field.annotation, (*section, name))


def is_secret(field: FieldInfo) -> bool:
    """Return whether a field holds a secret, perhaps an optional one."""
    return SecretStr in (field.annotation, *get_args(field.annotation))


def unknown_variables() -> set[str]:
    """Find variables with our prefix that set nothing, which pydantic-settings ignores; they are probably misspelt."""
    known: set[str] = set()
    for location, field in locations(Settings):
        known |= {variable(location), variable(location) + FILE_SUFFIX} if is_secret(field) else {variable(location)}
    return {
        name
        for name, value in os.environ.items()
        if name.startswith(PREFIX)
        and name.upper() not in known
        and not READ_ELSEWHERE.fullmatch(name)
        and not KUBERNETES.fullmatch(f"{name}={value}")
    }


def with_secrets_from_files(model: type[BaseModel], environment: Mapping[str, str | None]) -> dict[str, str | None]:
    """Replace each `…_FILE` variable with the secret in that file; names are in lower case.

    Raises: ConfigurationError if a file cannot be read, or if its secret is also set directly.
    """
    values = dict(environment)
    for location, field in locations(model):
        name = variable(location)
        if is_secret(field) and (file := values.pop((name + FILE_SUFFIX).lower(), None)):
            if values.get(name.lower()):
                problem = f"{name} is set too; only one of them can count"
                raise ConfigurationError(setting=name + FILE_SUFFIX, problem=problem)
            values[name.lower()] = read_secret(name + FILE_SUFFIX, Path(file))
    return values


def read_secret(setting: str, file: Path) -> str:
    """Read a secret's file without its final newline. Raises: ConfigurationError that names the setting."""
    try:
        secret = _text_of(file).removesuffix("\n").removesuffix("\r")
        if not secret:
            raise ValueError(f"{file}: the file is empty")
    except ValueError as error:
        raise ConfigurationError(setting=setting, problem=str(error)) from None
    return secret


HIDDEN = "********"
URI = ("mongo", "uri")
ORIGINS = ("serve", "cors_origins")
_HOST = r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\])(?::\d+)?"
_ADDRESS = re.compile(
    rf"(?P<scheme>[a-z][a-z0-9+]*://)(?:[^/?#@\s]*@)?(?P<place>{_HOST}(?:,{_HOST})*(?:/[\w./-]*)?)(?:\?.*)?"
)

_SEGMENT = re.compile(r"[a-z]{1,16}(?:[-_.][a-z]{1,16})*|v\d\w{0,6}|")
"""A segment of a web server's path, such as `v1` or `openai`. Anything else may be a key, as some gateways have it."""
KEYS = (
    (("qdrant", "url"), ("qdrant", "api_key")),
    (("llm", "base_url"), ("llm", "api_key")),
    (("embedder", "base_url"), ("embedder", "api_key")),
    (("reranker", "base_url"), ("reranker", "api_key")),
    (("registry", "url"), ("registry", "password")),
)
"""Addresses, and the keys that are sent to them."""


def without_credentials(address: str) -> str:
    """Remove the credentials from an address, and hide what may be a key in its path.

    `mongodb://user:password@host/db?option=…` becomes `mongodb://host/db`, and `https://host/v1/key` becomes
    `https://host/v1/********`. Any other text is hidden entirely, because any part of it may be the password.
    """
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        return HIDDEN
    if parts["scheme"].startswith("mongodb"):
        return parts["scheme"] + parts["place"]
    host, *segments = parts["place"].split("/")
    shown = (segment if _SEGMENT.fullmatch(segment) else HIDDEN for segment in segments)
    return parts["scheme"] + "/".join((host, *shown))


def keys_in_clear(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield each API key that is sent unencrypted to another machine: its variable, and the address that it goes to."""
    for place, key in KEYS:
        address = getattr(getattr(settings, place[0]), place[1]) or ""
        try:
            parts = urlsplit(address)
        except ValueError:  # not an address
            continue
        is_elsewhere_in_clear = parts.scheme == "http" and not is_loopback(parts.hostname)
        if is_elsewhere_in_clear and getattr(getattr(settings, key[0]), key[1]):
            yield variable(key), without_credentials(address)


def shown_settings(settings: Settings) -> Iterator[tuple[str, Any, bool]]:
    """Yield each setting in the order of docs/settings.md: its variable, its value as it may be displayed, and whether
    it was set. A value is JSON, with `********` in place of a secret.
    """
    for location, field in locations(Settings):
        if not (isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)):
            *sections, name = map(str, location)
            section: Any = reduce(getattr, sections, settings)
            value = _presentable(location, getattr(section, name))
            yield variable(location), value, name in section.model_fields_set


def _presentable(location: Location, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _presentable((*location, name), part) for name, part in value.items()}
    if isinstance(value, BaseModel):
        return _presentable(location, dict(value))
    if isinstance(value, SecretStr):
        return without_credentials(value.get_secret_value()) if location == URI else HIDDEN
    if location == ORIGINS:
        return ", ".join(_presentable((), origin.strip()) for origin in value.split(","))
    if isinstance(value, str) and "://" in value:
        return without_credentials(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, Path) else value


def shown_as_dict(settings: Settings) -> dict[str, Any]:
    """Return the displayed values, nested as in the TOML file."""
    shown: dict[str, Any] = _presentable((), settings)
    return shown
