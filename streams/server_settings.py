"""Settings about the servers that are there already: Kafka, MongoDB, Qdrant."""

from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from afterword.streams.kafka_security import Mechanism, Protocol, check
from afterword.streams.section import Seconds, Section


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
