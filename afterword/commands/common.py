"""What the commands share: their settings, common options and errors."""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from afterword.streams.errors import AfterwordError, BrokerUnavailable, ConfigurationError, StoreUnavailable
from afterword.streams.private import OWNER_ONLY
from afterword_text.visible import shown

if TYPE_CHECKING:
    from afterword.reading.memory import Memory
    from afterword.streams.settings import Settings

Opened = TypeVar("Opened")
Result = TypeVar("Result")

FAILED = 1
MISCONFIGURED = 2

ANSWER_SECONDS = 1.5
"""Servers must give a command their first answer within this time, so that it reports a dead one within 3 seconds."""

AGO = re.compile(r"(\d+)([smhd])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment(text: str) -> datetime:
    """Parse an RFC 3339 time, or a duration such as `90s`, `15m`, `2h` or `3d` ago, as UTC. Raises: BadParameter."""
    try:
        if ago := AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{UNITS[ago[2]]: int(ago[1])})
        parsed = datetime.fromisoformat(text)
        return parsed.astimezone(UTC) if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is not within the years 1 to 9999") from None
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither an RFC 3339 time nor a duration such as 15m, 2h or 3d") from None


def not_empty(value: str | None) -> str | None:
    """Reject an empty value, which usually comes from an unset variable in a script. Raises: typer.BadParameter."""
    if value == "":
        raise typer.BadParameter("it is empty")
    return value


def known_zone(name: str | None) -> str | None:
    """Reject an unknown time zone. Raises: typer.BadParameter."""
    from afterword.streams.settings import zone_of

    try:
        if name is not None:
            zone_of(name)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return name


Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
USER = typer.Option("--user", callback=not_empty, help="Only data of this user, matched exactly.")
User = Annotated[str | None, USER]
RequiredUser = Annotated[str, USER]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only data of this tenant.")]
NoTenant = Annotated[bool, typer.Option("--no-tenant", help="Only data without a tenant.")]
Conversation = Annotated[str | None, typer.Option("--conversation", help="Only this conversation.")]
TimeZone = Annotated[
    str | None,
    typer.Option(
        "--time-zone",
        callback=known_zone,
        help="Zone of days and times, such as Europe/Berlin; default: AFTERWORD_SUMMARIZER__TIME_ZONE.",
    ),
]
Since = Annotated[
    datetime | None,
    typer.Option(parser=moment, help="Only those since this time, or since 15m, 2h or 3d ago."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done without changing anything.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]


def start() -> "Settings":
    """Load the settings and send logs to standard error, because standard output is for results.

    Files created from now on are private to the user. API keys that are sent unencrypted are logged as warnings.
    Raises: ConfigurationError.
    """
    from afterword.streams.logs import configure, log
    from afterword.streams.settings import keys_in_clear, load_settings

    os.umask(OWNER_ONLY)
    settings = load_settings()
    configure(settings.logs)
    for setting, address in keys_in_clear(settings):
        log.warning("api_key_sent_in_clear", setting=setting, address=address, remedy="use an https address")
    return settings


def start_quietly() -> "Settings":
    """Load the settings as `start` does, but silence aiokafka's logs: the command reports errors itself."""
    settings = start()
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    return settings


def start_command() -> "Settings":
    """Load the settings of a short-lived command. By default they are those of `afterword dev` in this directory.

    aiokafka's logs are silenced, and servers that do not answer are given up early, because somebody is waiting.
    """
    find_config()
    settings = start_quietly()
    servers = {name: getattr(settings, name).answering_within(ANSWER_SECONDS) for name in ("kafka", "mongo", "qdrant")}
    return settings.model_copy(update=servers)


def find_config() -> None:
    """If the settings come from an `afterword dev` file, say so, and name the file to child processes."""
    from afterword.streams.settings import CONFIG_FILE_VARIABLE, config_file, dev_config

    if CONFIG_FILE_VARIABLE in os.environ:
        return
    if file := config_file():
        os.environ[CONFIG_FILE_VARIABLE] = file
        typer.echo(f"afterword: using the settings in {file}", err=True)
    elif (other := dev_config()) and other.stat().st_uid != os.getuid():
        typer.echo(f"afterword: ignoring {other}, which belongs to another user", err=True)


def next_step(error: AfterwordError) -> str:
    """If a server cannot be reached, say where its address comes from and what to do; return "" for other errors."""
    from afterword.streams.settings import ADDRESSES, address_source, load_settings, without_credentials

    kafka, mongodb, qdrant, _ = ADDRESSES
    variable = kafka if type(error) is BrokerUnavailable else None
    if type(error) is StoreUnavailable:
        store = str(vars(error).get("store", "")).partition(" ")[0].lower()
        variable = {"kafka": kafka, "mongodb": mongodb, "qdrant": qdrant}.get(store)
    if variable is None:
        return ""
    address = f" {without_credentials(load_settings().mongo.uri.get_secret_value())}" if variable == mongodb else ""
    return f"; its address{address} {address_source(variable)}"


def tenant_of(tenant: str | None, no_tenant: bool) -> str | None:
    """Return the named tenant, or None for data without one. Raises: BadParameter if neither or both are given."""
    if (tenant is None) != no_tenant:
        raise typer.BadParameter("give either --tenant or --no-tenant")
    return tenant


def report(error: AfterwordError) -> int:
    """Print the error on one line, without a traceback. Returns the exit code."""
    sys.stderr.write(f"afterword: {shown(str(error) + next_step(error))}\n")
    return MISCONFIGURED if isinstance(error, ConfigurationError) else FAILED


def use(
    open_: "Callable[[Settings], AbstractAsyncContextManager[Opened]]",
    settings: "Settings",
    work: Callable[[Opened], Awaitable[Result]],
) -> Result:
    """Open something with these settings, work with it, and close it."""

    async def run() -> Result:
        async with open_(settings) as opened:
            return await work(opened)

    return asyncio.run(run())


def from_memory(read: "Callable[[Memory], Awaitable[Result]]", settings: "Settings | None" = None) -> Result:
    """Read from the memory of these settings; by default, start the command with its own."""
    from afterword.reading.memory import Memory

    return use(Memory.from_settings, settings or start_command(), read)
