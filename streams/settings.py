"""Every setting, its default, its bounds and what it is for: the single source of the reference."""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from streams import prompt_template
from streams.environment import PREFIX, unknown_variables, variable, with_secrets_from_files
from streams.episode_settings import Episodes
from streams.errors import ConfigurationError
from streams.kafka_security import Mechanism, Protocol, check
from streams.outage_settings import Budget, Retry
from streams.section import Seconds, Section

__all__ = ["PREFIX", "Budget", "Episodes", "Retry", "Section", "Settings", "load", "variable"]

CONFIG_FILE_VARIABLE = "AFTERWORD_CONFIG"

LOCAL_EMBEDDER = "wordllama-l2-supercat-256"

MOST_PENDING_EPISODES = 20
"""That many episodes the rolling summary may be behind: its next update is told of all of them."""


class Kafka(Section):
    bootstrap_servers: str = Field("127.0.0.1:9092", description="host:port, several separated by commas")
    messages_topic: str = Field("messages", description="input")
    episodes_topic: str = Field("episode.closed", description="closed episodes, written in transactions")
    summaries_topic: str = Field("summary.created", description="what everyone downstream subscribes to")
    retry_topic: str = Field("episode.retry", description="episodes whose fallback the LLM is to replace")
    segmenter_id: str = Field(
        "afterword-segmenter", description="Faust app id: consumer group, changelogs, transactions"
    )
    summarizer_id: str = Field("afterword-summarizer", description="Faust app id: consumer group")
    archiver_id: str = Field("afterword-archiver", description="consumer group")
    partitions: int = Field(8, ge=1, description="partitions of the topics that `topics create` makes")
    replication_factor: int = Field(1, ge=1, description="of those topics; 3 in production")
    min_insync_replicas: int = Field(1, ge=1, description="of those topics; 2 in production")
    session_timeout_seconds: Seconds = Field(10.0, ge=6, description="a silent worker loses its partitions after this")
    rebalance_timeout_seconds: Seconds = Field(60.0, description="how long a rebalance waits for a worker")
    request_timeout_seconds: Seconds = Field(20.0, description="one request to the broker")
    group_instance_id: str | None = Field(None, description="static membership: a restart causes no rebalance")
    security_protocol: Protocol = Field("PLAINTEXT", description="of every connection to the brokers")
    sasl_mechanism: Mechanism | None = Field(None, description="required with SASL")
    username: str | None = Field(None, min_length=1, description="for PLAIN and SCRAM")
    password: SecretStr | None = Field(None, min_length=1, description="for PLAIN and SCRAM")
    oauth_token_endpoint: str | None = Field(
        None, pattern="^https?://[^/@]+(/|$)", description="for OAUTHBEARER, by client credentials; https in production"
    )
    oauth_client_id: str | None = Field(None, min_length=1, description="for OAUTHBEARER")
    oauth_client_secret: SecretStr | None = Field(None, min_length=1, description="for OAUTHBEARER")
    oauth_scope: str | None = Field(None, description="for OAUTHBEARER, where the endpoint wants one")
    oauth_ca_file: Path | None = Field(None, description="PEM: CAs of the token endpoint; default: the system's")
    ssl_ca_file: Path | None = Field(None, description="PEM: CAs of the brokers; default: the system's")
    ssl_cert_file: Path | None = Field(None, description="PEM: our own certificate, where brokers ask for one")
    ssl_key_file: Path | None = Field(None, description="PEM: its key; default: in the certificate's file")
    ssl_key_password: SecretStr | None = Field(None, description="of that key")

    def dead_letters(self, topic: str) -> str:
        return f"{topic}.dlq"

    def changelog(self, table: str) -> str:
        """The topic that keeps a table of the segmenter."""
        return f"{self.segmenter_id}-{table}-changelog"

    @model_validator(mode="after")
    def possible(self) -> Self:
        given = {name for name in type(self).model_fields if getattr(self, name) is not None}
        check(self.security_protocol, self.sasl_mechanism, given)
        return self


class Engine(Section):
    max_batch: int = Field(2000, ge=1, description="records that one transaction takes at most")
    linger_ms: int = Field(20, ge=0, description="wait between polls of a partition that lags; none when caught up")
    transaction_timeout_seconds: Seconds = Field(15.0, description="the broker ends a transaction older than this")
    commit_timeout_seconds: Seconds = Field(20.0, description="a commit that takes longer is started over")
    agent_retries: int = Field(3, ge=0, description="retries of a failing batch before the worker stops")
    tick_seconds: Seconds = Field(1.0, description="how often deadlines are looked at")
    commit_interval_seconds: Seconds = Field(1.0, description="offsets of the summarizer are committed this often")
    watchdog_seconds: float = Field(
        120.0, ge=5, description="a worker that has work and gets nothing done for so long ends, to be started again"
    )


class Mongo(Section):
    uri: SecretStr = Field(
        SecretStr("mongodb://127.0.0.1:27017"), description="connection string, with user and password in it"
    )
    database: str = Field("afterword", min_length=1, description="name of the database")
    tls_ca_file: Path | None = Field(None, description="PEM: CAs of the servers; turns TLS on")
    tls_cert_file: Path | None = Field(None, description="PEM: our own certificate and its key; turns TLS on")
    tls_key_password: SecretStr | None = Field(None, description="of that key")
    timeout_seconds: Seconds = Field(10.0, description="one operation, server selection included")

    @model_validator(mode="after")
    def possible(self) -> Self:
        if self.tls_key_password and not self.tls_cert_file:
            raise ValueError("tls_key_password needs tls_cert_file")
        return self


class Qdrant(Section):
    url: str | None = Field(None, description="a Qdrant server; without url and path: http://127.0.0.1:6333")
    path: Path | None = Field(None, description="a directory, for Qdrant's local mode (one process only)")
    api_key: SecretStr | None = Field(None, description="of the server; give it an https url")
    ca_file: Path | None = Field(None, description="PEM: CAs of the server; default: those of certifi")
    collection: str = Field("episodes", min_length=1, description="the embedder's model, if any, is appended to it")
    timeout_seconds: Seconds = Field(10.0, description="one request, in whole seconds")

    @model_validator(mode="after")
    def one_place(self) -> Self:
        if self.url and self.path:
            raise ValueError("url and path exclude each other")
        if self.path and (self.api_key or self.ca_file):
            raise ValueError("api_key and ca_file are of a server, and have no use with path")
        return self


class Llm(Section):
    provider: Literal["extractive", "openai", "ollama"] = Field("extractive", description="who writes the summaries")
    base_url: str | None = Field(None, description="default: the provider's own address")
    model: str | None = Field(None, description="required for openai and ollama")
    title_model: str | None = Field(
        None, min_length=1, description="of the same server: makes the titles, from the summaries; default: model"
    )
    chat_format: Literal["messages", "chatml"] = Field(
        "messages", description="chatml: one raw ChatML prompt, for a server that knows no chat template of the model"
    )
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    ca_file: Path | None = Field(None, description="PEM: CAs of the server; default: those of certifi")
    temperature: float = Field(0.2, ge=0, le=2, description="of the model; lower is more literal")
    max_output_tokens: int | None = Field(
        None, ge=64, description="tokens of one answer; default: 500 for plain text, for JSON what its texts may need"
    )
    context_tokens: int = Field(
        32_768,
        ge=4096,
        description="what the model takes at a time; a longer episode is summarised in parts",
    )
    cache_seconds: int = Field(
        2_592_000,
        ge=0,
        le=315_360_000,
        description="how long an answer is kept, so that it is not asked for again; 0: not at all",
    )
    timeout_seconds: Seconds = Field(60.0, description="one call")
    attempts: int = Field(4, ge=1, description="calls in all for connection errors, 429 and 5xx")
    retry_budget_seconds: Seconds = Field(180.0, description="no further attempt is begun after this")
    json_attempts: int = Field(3, ge=1, description="calls in all until the answer can be used")
    max_concurrency: int = Field(8, ge=1, description="calls at a time")

    @model_validator(mode="after")
    def complete(self) -> Self:
        if self.provider != "extractive" and not self.model:
            raise ValueError(f"model is required with provider = {self.provider}")
        if self.max_output_tokens and 2 * self.max_output_tokens > self.context_tokens:
            given = f"max_output_tokens ({self.max_output_tokens})"
            raise ValueError(f"{given} is more than half of context_tokens ({self.context_tokens})")
        return self


class Embedder(Section):
    provider: Literal["none", "openai", "ollama", "local"] = Field("none", description="dense vectors; none by default")
    base_url: str | None = Field(None, description="default: the provider's own address")
    model: str | None = Field(None, description="required for openai and ollama")
    api_key: SecretStr | None = Field(None, description="sent as a bearer token")
    ca_file: Path | None = Field(None, description="PEM: CAs of the server; default: those of certifi")
    timeout_seconds: Seconds = Field(30.0, description="one call")

    @model_validator(mode="after")
    def complete(self) -> Self:
        if self.provider in ("openai", "ollama") and not self.model:
            raise ValueError(f"model is required with provider = {self.provider}")
        return self

    @property
    def vectors_model(self) -> str | None:
        """What made the dense vectors; part of the collection's name. None: there are none."""
        if self.provider == "local":
            return LOCAL_EMBEDDER
        return self.model if self.provider != "none" else None


class Summarizer(Section):
    on_llm_outage: Literal["fallback", "wait"] = Field(
        "fallback",
        description="fallback: summarise without the LLM, and ask it later; wait: store nothing, be not ready",
    )
    preset: Literal["episodic", "focus_points", "plain_3_5"] = Field(
        "episodic", description="what the LLM is asked for; plain_3_5: plain text, for small models without JSON"
    )
    prompt: str | None = Field(None, description="a template instead of the preset's: see docs/summaries.md")
    prompt_file: Path | None = Field(None, description="a file with that template")
    max_summary_length: int | None = Field(
        None, ge=400, le=10_000, description="characters of the long summary; default: 1000, or the trigger preset's"
    )
    tool_output_characters: int = Field(
        2000, ge=100, description="a longer output of a tool is shown to the LLM without its middle"
    )

    @field_validator("prompt")
    @classmethod
    def is_template(cls, text: str | None) -> str | None:
        if text is not None:
            prompt_template.check(text)
        return text

    @field_validator("prompt_file")
    @classmethod
    def is_file_with_template(cls, file: Path | None) -> Path | None:
        if file is not None:
            prompt_template.check(_text_of(file))
        return file

    @model_validator(mode="after")
    def one_template(self) -> Self:
        if self.prompt is not None and self.prompt_file is not None:
            raise ValueError("prompt and prompt_file exclude each other")
        return self

    def template(self) -> str | None:
        """What was written instead of the preset's; None: nothing. Raises: ValueError if its file is gone."""
        return _text_of(self.prompt_file) if self.prompt_file is not None else self.prompt


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:  # the error's own text quotes the bytes
        raise ValueError(f"{file}: not UTF-8 text") from None


class Rolling(Section):
    max_tokens: int = Field(800, ge=50, description="a rolling-summary row longer than this is followed by a new one")
    min_new_episodes: int = Field(
        1, ge=1, le=MOST_PENDING_EPISODES, description="episodes after which the rolling summary is made anew"
    )
    min_tokens: int = Field(0, ge=0, description="tokens that these episodes must have, too")


class Quality(Section):
    enabled: bool = Field(True, description="false: summaries are measured, and none is refused")
    min_grounding: float = Field(
        0.8, ge=0, le=1, description="share of a summary's names, numbers and dates that its source must have"
    )
    strict_figures: bool = Field(
        True, description="one number, date, amount, code or address that its source lacks refuses a summary"
    )


class Health(Section):
    host: str = Field("127.0.0.1", description="where the health server listens")
    port: int = Field(0, ge=0, le=65535, description="0: any free one, named in the log")


class Logs(Section):
    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="what is less severe is left out")
    format: Literal["auto", "json", "console"] = Field("auto", description="auto: JSON when not on a terminal")


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    state_dir: Path = Field(Path(".afterword/state"), description="RocksDB of the segmenter; may be lost, not shared")
    drain_seconds: Seconds = Field(30.0, description="SIGTERM: what is in flight is finished within this")
    max_in_flight: int = Field(64, ge=1, description="episodes that a summarizer holds at a time, for each partition")
    config: Path | None = Field(None, exclude=True, description="TOML file; the environment wins")
    kafka: Kafka = Kafka()
    engine: Engine = Engine()
    episodes: Episodes = Episodes()
    mongo: Mongo = Mongo()
    qdrant: Qdrant = Qdrant()
    llm: Llm = Llm()
    embedder: Embedder = Embedder()
    summarizer: Summarizer = Summarizer()
    rolling: Rolling = Rolling()
    quality: Quality = Quality()
    retry: Retry = Retry()
    budget: Budget = Budget()
    health: Health = Health()
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
        file = os.environ.get(CONFIG_FILE_VARIABLE)
        toml = (TomlConfigSettingsSource(settings_cls, toml_file=file),) if file else ()
        environment = EnvSettingsSource(settings_cls)
        environment.env_vars = with_secrets_from_files(settings_cls, environment.env_vars)
        return (init_settings, environment, *toml)


def load(**overrides: Any) -> Settings:
    """Settings from the environment and the file it names; keyword arguments win over both.

    Raises: ConfigurationError with the one setting that is wrong.
    """
    file = os.environ.get(CONFIG_FILE_VARIABLE)
    if file and not Path(file).is_file():
        raise ConfigurationError(setting=CONFIG_FILE_VARIABLE, problem="no such file")
    unknown = sorted(unknown_variables(Settings, OTHERS))
    if unknown:
        raise ConfigurationError(setting=unknown[0], problem="no such setting")
    try:
        return Settings(**overrides)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise ConfigurationError(
            setting=variable(first["loc"]), problem=first["msg"].removeprefix("Value error, ")
        ) from None
    except ValueError as error:  # a file that is not TOML, a variable that is not JSON
        raise ConfigurationError(setting=file or PREFIX + "*", problem=str(error)) from None


OTHERS = {"TEST_STACK", "CACHE_DIR"}
"""Read elsewhere: by the tests, and by the embedded stack."""
