"""`afterword sealing`: the keys of users, with which contents are sealed."""

import asyncio
from typing import TYPE_CHECKING

import typer

from afterword.commands.common import Json, print_json, start_command
from afterword.streams.errors import ConfigurationError
from afterword.streams.visible import many

if TYPE_CHECKING:
    from afterword.streams.settings import Settings

app = typer.Typer(help="Keys of users, with which contents are sealed.", no_args_is_help=True)


@app.callback()
def sealing() -> None:
    """Keys of users, with which contents are sealed."""


@app.command()
def rewrap(as_json: Json = False) -> None:
    """Wrap all keys of users with the first key of AFTERWORD_CRYPTO__KEY; afterwards the others are not needed."""
    settings = start_command()
    if not settings.crypto.key:
        raise ConfigurationError(setting="AFTERWORD_CRYPTO__KEY", problem="is not set")
    number = asyncio.run(_rewrap(settings))
    if as_json:
        print_json({"rewrapped": number})
    else:
        typer.echo(f"{many(number, 'key', 'keys')} wrapped anew")


async def _rewrap(settings: "Settings") -> int:
    from afterword.streams.sealing.codec import WrappingKeys
    from afterword.streams.sealing.keyring import rewrap_keys
    from afterword.streams.stores.opening import open_stores

    async with open_stores(settings) as stores:
        return await rewrap_keys(stores.user_keys, WrappingKeys(settings.crypto.wrapping_keys))
