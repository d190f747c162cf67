"""Every setting, its default, its bounds and what it is for: the single source of the reference."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from afterword.streams.environment import PREFIX, unknown_variables, variable, with_secrets_from_files
from afterword.streams.episode_settings import Episodes
from afterword.streams.errors import ConfigurationError
from afterword.streams.outage_settings import Budget, Retry
from afterword.streams.section import Seconds, Section
from afterword.streams.server_settings import Kafka, Mongo, Qdrant
from afterword.streams.summary_settings import (
    LOCAL_EMBEDDER,
    MOST_PENDING_EPISODES,
    Embedder,
    Llm,
    Quality,
    Rolling,
    Summarizer,
)

__all__ = [
    "LOCAL_EMBEDDER",
    "MOST_PENDING_EPISODES",
    "PREFIX",
    "Budget",
    "Embedder",
    "Episodes",
    "Kafka",
    "Llm",
    "Mongo",
    "Qdrant",
    "Quality",
    "Retry",
    "Rolling",
    "Section",
    "Settings",
    "Summarizer",
    "load",
    "variable",
]

CONFIG_FILE_VARIABLE = "AFTERWORD_CONFIG"


class Engine(Section):
    max_batch: int = Field(2000, ge=1, description="records that one transaction takes at most")
    linger_ms: int = Field(20, ge=0, description="wait between polls of a partition that lags; none when caught up")
    transaction_timeout_seconds: Seconds = Field(15.0, description="the broker ends a transaction older than this")
    commit_timeout_seconds: Seconds = Field(20.0, description="a commit that takes longer is started over")
    agent_retries: int = Field(3, ge=0, description="retries of a failing batch before the worker stops")
    tick_seconds: Seconds = Field(0.5, description="how often deadlines are looked at")
    commit_interval_seconds: Seconds = Field(1.0, description="offsets of the summarizer are committed this often")
    watchdog_seconds: float = Field(
        120.0, ge=5, description="a worker that has work and gets nothing done for so long ends, to be started again"
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
