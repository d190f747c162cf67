"""Connections to Kafka: TLS, SASL and OAuth, the plain aiokafka clients, and why a broker rejects a connection.

Needs aiokafka, pydantic and orjson, which producers and subscribers have, and httpx only for OAUTHBEARER.
"""

import asyncio
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote_plus, urlsplit

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, ConsumerRecord
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import (
    BrokerResponseError,
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.metadata import MetadataRequest

from afterword.schemas import InvalidRecord
from afterword.schemas.dead_letters import DeadLetter
from afterword.schemas.records import KafkaRecord, json_object
from afterword.streams.errors import (
    AfterwordError,
    BrokerRefuses,
    BrokerUnavailable,
    ConfigurationError,
    RequestRefused,
    TopicMissing,
)
from afterword.streams.settings import ADDRESSES, Kafka, address_source, variable
from afterword.streams.tls import add_client_certificate, verifying_context

if TYPE_CHECKING:
    import httpx

SASL_PREFIX = "sasl_"
CONNECTION_OPTIONS = {"security_protocol", "ssl_context", "client_id", "request_timeout_ms"}

RENEWED_AFTER = 0.8
"""Fraction of a token's life after which it is renewed, as in Kafka's own clients
(sasl.login.refresh.window.factor)."""
DEFAULT_TOKEN_SECONDS = 60.0
"""Life of a token if its endpoint does not state one."""
TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*")
"""From RFC 6750, 2.1."""
OAUTH_ERRORS = {
    *("invalid_request", "invalid_client", "invalid_grant", "invalid_scope"),
    *("unauthorized_client", "unsupported_grant_type"),
}
"""From RFC 6749, 5.2. Any other text from an endpoint may quote the request."""


class Position(NamedTuple):
    """Partition and offset of a record whose topic is known from the context."""

    partition: int
    offset: int


def position_of(record: ConsumerRecord) -> Position:
    return Position(record.partition, record.offset)


# Clients


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Return keyword arguments that consumers, producers and admin clients share.

    Raises: ConfigurationError if a certificate or key file cannot be used.
    """
    return {
        "bootstrap_servers": kafka.bootstrap_servers,
        "client_id": client_id(kafka),
        "request_timeout_ms": int(kafka.request_timeout_seconds * 1000),
        **security(kafka),
    }


def client_id(kafka: Kafka, role: str = "client") -> str:
    """Name a client in the brokers' logs, metrics and quotas by role and instance."""
    return f"afterword-{role}-{kafka.group_instance_id or socket.gethostname()}"


@asynccontextmanager
async def admin_client(kafka: Kafka, **options: Any) -> AsyncIterator[AIOKafkaAdminClient]:
    """Run an admin client; `options` override the settings. Raises: BrokerUnavailable."""
    given = client_options(kafka) | options
    if kafka.answer_seconds:
        await _require_answer(given, kafka.answer_seconds)
    client = AIOKafkaAdminClient(**given)
    try:
        await start_client(client, given)
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def running_producer(kafka: Kafka, **given: Any) -> AsyncIterator["IdempotentProducer"]:
    """Run a producer. The options in `given` override the settings. Raises: BrokerUnavailable."""
    producer = IdempotentProducer(client_options(kafka) | given)
    try:
        await producer.start()
        yield producer
    finally:
        await producer.stop()


class IdempotentProducer:
    """An idempotent producer with `acks=all` and the default partitioner (murmur2, as in the Java client).

    After a failed delivery, aiokafka's producer is replaced. It has given the failed records sequence numbers that the
    broker never saw, so everything that it sends to their partition afterwards would be out of order for ever.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = {"acks": "all", "enable_idempotence": True, "linger_ms": 5, **options}
        self._client = AIOKafkaProducer(**self._options)
        self._broken = False
        self._replacing = asyncio.Lock()

    async def start(self) -> None:
        """Connect. Raises: BrokerUnavailable."""
        await start_client(self._client, self._options)

    async def stop(self) -> None:
        """Wait for every acknowledgement, then disconnect."""
        await self._client.stop()

    async def send(self, topic: str, value: bytes | None = None, **record: Any) -> "asyncio.Future[Any]":
        """Send a record, waiting only while the client's buffer is full. The future completes with the acknowledgement.

        Raises: KafkaError, BrokerUnavailable.
        """
        client = await self._working()
        delivery: asyncio.Future[Any] = await client.send(topic, value, **record)
        delivery.add_done_callback(partial(self._note_failure, client))
        return delivery

    async def send_and_wait(self, topic: str, value: bytes | None = None, **record: Any) -> Any:
        """Send a record and return its metadata. Raises: KafkaError, BrokerUnavailable."""
        return await (await self.send(topic, value, **record))

    async def flush(self) -> None:
        await self._client.flush()

    async def _working(self) -> AIOKafkaProducer:
        async with self._replacing:
            if self._broken:
                await self._client.stop()  # delivers, or fails, the records that it has accepted
                self._client = AIOKafkaProducer(**self._options)
                await self.start()
                self._broken = False
        return self._client

    def _note_failure(self, client: AIOKafkaProducer, delivery: "asyncio.Future[Any]") -> None:
        if client is self._client and not delivery.cancelled() and delivery.exception() is not None:
            self._broken = True


@asynccontextmanager
async def running_consumer(
    kafka: Kafka, *topics: str, listener: ConsumerRebalanceListener | None = None, **options: Any
) -> AsyncIterator[AIOKafkaConsumer]:
    """Run a consumer that reads only committed records and does not commit by itself.

    Raises: BrokerUnavailable, TopicMissing.
    """
    from afterword.streams.kafka.fetching import BoundedConsumer  # its decompressors come with the extra `worker`

    await require_topics(kafka, *topics)
    ours = client_options(kafka)
    defaults = {"enable_auto_commit": False, "isolation_level": "read_committed", "client_rack": kafka.client_rack}
    consumer = BoundedConsumer(**ours | defaults | options)
    consumer.subscribe(topics, listener=listener)
    try:
        await start_client(consumer, ours)
        yield consumer
    finally:
        await consumer.stop()


@contextmanager
def noting_address(wanted: bool) -> Iterator[None]:
    """If `wanted`, add a note to the error of an unreachable Kafka: where its address comes from, and what to do."""
    try:
        yield
    except BrokerUnavailable as error:
        if wanted:
            error.add_note(f"its address {address_source(ADDRESSES[0])}")
        raise


async def require_topics(kafka: Kafka, *topics: str, **options: Any) -> None:
    """Check that topics exist, because a client would silently wait for a missing one.

    `options` override the settings. Raises: BrokerUnavailable; TopicMissing with the first missing topic.
    """
    async with admin_client(kafka, **options) as admin:
        existing = set(await admin.list_topics())
    for topic in topics:
        if topic not in existing:
            raise TopicMissing(topic=topic)


async def start_client(client: Any, options: Mapping[str, Any]) -> None:
    """Start an aiokafka client made with these options. Raises: BrokerUnavailable, or its subclass BrokerRefuses."""
    seconds = options["request_timeout_ms"] / 1000
    if options.get("sasl_mechanism") == "OAUTHBEARER":
        # aiokafka does not read a broker's answer to a token: a rejected client starts but never finds a broker
        await _require_answer(options, seconds)
    try:
        await client.start()
    except KafkaConnectionError as error:
        await _require_answer(options, seconds)
        raise BrokerUnavailable(servers=options["bootstrap_servers"], problem=str(error)) from None


async def send_copy(
    producer: AIOKafkaProducer,
    topic: str,
    record: KafkaRecord | DeadLetter,
    partition: int | None,
    timestamp_ms: int | None = None,
) -> "asyncio.Future[Any]":
    """Send a copy of a record that any producer may have sent. The future completes with the acknowledgement.

    aiokafka's `send` refuses a record that has neither key nor value. Such a record is sent as a batch of one, to
    partition 0 unless a partition is named.
    """
    sending: asyncio.Future[Any]
    if record.key is None and record.value is None:
        batch = producer.create_batch()
        batch.append(key=None, value=None, timestamp=timestamp_ms, headers=list(record.headers))
        sending = await producer.send_batch(batch, topic, partition=partition or 0)
    else:
        content = {"key": record.key, "headers": list(record.headers), "timestamp_ms": timestamp_ms}
        sending = await producer.send(topic, record.value, partition=partition, **content)
    return sending


@contextmanager
def broker_errors(servers: str) -> Iterator[None]:
    """Turn aiokafka's errors into BrokerUnavailable, or into its subclass RequestRefused if a broker answered."""
    try:
        yield
    except BrokerResponseError as error:
        problem = "; ".join([str(error), *getattr(error, "__notes__", ())])
        raise RequestRefused(servers=servers, problem=problem) from error
    except KafkaError as error:
        # aiokafka's own error may say nothing
        cause = f" ({type(error.__cause__).__name__})" if error.__cause__ else ""
        raise BrokerUnavailable(servers=servers, problem=f"{error}{cause}") from error


# Rejected connections. aiokafka logs the reason, but raises only that it found no broker


async def _require_answer(options: Mapping[str, Any], seconds: float) -> None:
    """Ask all brokers at once; return when the first one answers. Raises: BrokerUnavailable, BrokerRefuses."""
    wanted, servers = connection_of(options), options["bootstrap_servers"]
    asked = [asyncio.create_task(_connect(host, port, wanted, seconds)) for host, port, _ in collect_hosts(servers)]
    errors: list[OSError | KafkaError] = []
    try:
        for answer in asyncio.as_completed(asked):
            try:
                return await answer
            except (OSError, KafkaError) as error:
                errors.append(error)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
    if problem := next(filter(None, (_reason_of(error, wanted) for error in errors)), None):
        raise BrokerRefuses(servers=servers, problem=problem)
    silence = {
        TimeoutError: f"it did not answer within {seconds:g} s",
        ConnectionRefusedError: "it refused the connection",
        socket.gaierror: "the name of its host cannot be resolved",
    }
    problems = dict.fromkeys(silence.get(type(error), type(error).__name__) for error in errors)
    raise BrokerUnavailable(servers=servers, problem="; ".join(problems))


async def _connect(host: str, port: int, options: Mapping[str, Any], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        connection = await create_conn(host, port, **options)
        try:
            metadata = await connection.send(MetadataRequest([]))
        finally:
            connection.close()
    if not metadata.brokers:
        raise KafkaConnectionError("the metadata names no broker")


def _reason_of(error: Exception, options: Mapping[str, Any]) -> str | None:
    """Describe why a broker rejected the connection; None if the broker was not reached."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate is not trusted: {error.verify_message}"
        case ssl.SSLError():
            return f"TLS fails ({error.reason or 'no reason given'})"
        case SaslAuthenticationFailed() | UnsupportedSaslMechanismError() | TokenUnavailable():
            return f"authentication fails: {' '.join(map(str, error.args))}"
        case ConnectionResetError() | KafkaConnectionError():
            if options.get("sasl_mechanism") == "OAUTHBEARER":
                return "authentication fails: the broker rejected the token"
            protocol = options.get("security_protocol", "PLAINTEXT")
            return f"the broker closed the connection; does this port speak {protocol}?"
    return None


# TLS and SASL


def security(kafka: Kafka) -> dict[str, Any]:
    """Return keyword arguments for TLS and SASL in any aiokafka client; clients given the same ones share a token.

    Raises: ConfigurationError if a certificate or key file cannot be used.
    """
    arguments: dict[str, Any] = {"security_protocol": kafka.security_protocol}
    if kafka.security_protocol.endswith("SSL"):
        arguments["ssl_context"] = _tls(kafka)
    if kafka.security_protocol.startswith("SASL"):
        has_token = kafka.sasl_mechanism in ("OAUTHBEARER", "AWS_MSK_IAM")
        arguments["sasl_mechanism"] = "OAUTHBEARER" if has_token else kafka.sasl_mechanism
        if has_token:
            arguments["sasl_oauth_token_provider"] = _tokens(kafka)
        else:
            assert kafka.password is not None  # noqa: S101 – the settings have been checked
            arguments["sasl_plain_username"] = kafka.username
            arguments["sasl_plain_password"] = kafka.password.get_secret_value()
    return arguments


def connection_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Select a client's connection options, including TLS and SASL."""
    return {
        name: value for name, value in options.items() if name in CONNECTION_OPTIONS or name.startswith(SASL_PREFIX)
    }


def _tls(kafka: Kafka) -> ssl.SSLContext:
    context = verifying_context(kafka.ssl_ca_file, variable(("kafka", "ssl_ca_file")))
    if kafka.ssl_cert_file:
        setting = variable(("kafka", "ssl_cert_file"))
        add_client_certificate(context, kafka.ssl_cert_file, kafka.ssl_key_file, kafka.ssl_key_password, setting)
    return context


def _tokens(kafka: Kafka) -> AbstractTokenProvider:
    if kafka.sasl_mechanism == "AWS_MSK_IAM":
        return RenewedTokens("AWS's credentials", aws_signer(str(kafka.aws_region)))
    if kafka.oauth_token_file:
        return RenewedTokens(str(kafka.oauth_token_file), token_file(kafka.oauth_token_file))
    address = urlsplit(str(kafka.oauth_token_endpoint)).netloc.rpartition("@")[2]
    return RenewedTokens(address, token_request(kafka, verifying_context()))


# OAuth


class TokenUnavailable(AfterwordError, KafkaError):  # type: ignore[misc]  # aiokafka is not typed
    """no token from {address}: {problem}"""

    # it is a KafkaError so that clients treat it as a failed connection and retry


Ask = Callable[[], Awaitable[tuple[str, float]]]
"""Gets a token and the seconds for which it is valid. Raises: NoToken."""


class RenewedTokens(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka is not typed
    """Provides tokens to all clients that share it. A token is used for most of its life, or until it expires if no new
    one can be obtained. Errors name `address` as their origin.
    """

    def __init__(self, address: str, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._ask = ask
        self._clock = clock
        self._token = ""
        self._renew_at = self._expires_at = clock()
        self._asking = asyncio.Lock()

    async def token(self) -> str:
        """Return a valid token. Raises: TokenUnavailable."""
        async with self._asking:
            now = self._clock()
            if now >= self._renew_at:
                try:
                    self._token, life_seconds = await self._ask()
                except NoToken as error:
                    if now >= self._expires_at:
                        raise TokenUnavailable(address=self._address, problem=error) from None
                else:
                    self._renew_at, self._expires_at = now + RENEWED_AFTER * life_seconds, now + life_seconds
        return self._token


def token_file(path: Path) -> Ask:
    """Return a function that reads the token from a file that something else renews; each connection reads it again."""

    async def read() -> tuple[str, float]:
        try:
            token = (await asyncio.to_thread(path.read_text, encoding="utf-8")).strip()
        except OSError as error:
            raise NoToken(error.strerror) from None
        except UnicodeDecodeError:  # the error's own text quotes the bytes
            raise NoToken("it is not text") from None
        if not TOKEN.fullmatch(token):
            raise NoToken("it contains no token")
        return token, 0.0

    return read


def aws_signer(region: str) -> Ask:
    """Return a function that signs tokens for Amazon MSK's IAM access control with the process's credentials.

    Raises: ConfigurationError if AWS's package is not installed.
    """
    try:
        from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        needed = "AWS_MSK_IAM needs: pip install '.[aws]' ./distributions/text ./distributions/engine in a checkout"
        raise ConfigurationError(setting=variable(("kafka", "sasl_mechanism")), problem=needed) from None

    async def sign() -> tuple[str, float]:
        try:
            token, expires_at_ms = await asyncio.to_thread(MSKAuthTokenProvider.generate_auth_token, region)
        except (BotoCoreError, ClientError, ValueError, AttributeError) as error:  # AttributeError: no credentials
            raise NoToken(type(error).__name__) from None
        return str(token), float(expires_at_ms) / 1000 - time.time()

    return sign


def token_request(kafka: Kafka, tls: ssl.SSLContext) -> Ask:
    """Return a function that requests tokens from an endpoint, by the client-credentials grant (RFC 6749, 4.4)."""

    async def ask() -> tuple[str, float]:
        import httpx  # imported only for OAUTHBEARER, because it takes 0.1 s

        assert kafka.oauth_client_id is not None  # noqa: S101 – the settings have been checked
        assert kafka.oauth_client_secret is not None  # noqa: S101 – the settings have been checked
        # RFC 6749, 2.3.1: user and password are form-encoded first
        auth = quote_plus(kafka.oauth_client_id), quote_plus(kafka.oauth_client_secret.get_secret_value())
        form = {"grant_type": "client_credentials"} | ({"scope": kafka.oauth_scope} if kafka.oauth_scope else {})
        try:
            async with (
                asyncio.timeout(kafka.request_timeout_seconds),
                httpx.AsyncClient(verify=tls, timeout=kafka.request_timeout_seconds) as client,
            ):
                return _read_token(await client.post(str(kafka.oauth_token_endpoint), data=form, auth=auth))
        except TimeoutError:
            raise NoToken("it did not answer in time") from None
        except httpx.HTTPError as error:
            raise NoToken(type(error).__name__) from None

    return ask


class NoToken(Exception):
    """Says why there is no token."""


def _read_token(response: "httpx.Response") -> tuple[str, float]:
    """Return the token and its life in seconds. Raises: NoToken."""
    try:
        body = json_object(response.content)
    except InvalidRecord:
        body = {}
    if not response.is_success:
        error = body.get("error")
        raise NoToken(f"it answers with {response.status_code}" + (f" {error}" if error in OAUTH_ERRORS else ""))
    token, life_seconds = body.get("access_token"), body.get("expires_in", DEFAULT_TOKEN_SECONDS)
    if not isinstance(token, str) or not TOKEN.fullmatch(token):
        raise NoToken("its answer holds no token")
    try:
        return token, float(life_seconds)
    except (TypeError, ValueError):
        return token, DEFAULT_TOKEN_SECONDS
