"""`afterword config`: what the settings amount to."""

import typer

from afterword.commands.common import Json, print_json, start

app = typer.Typer(help="Show the configuration.", no_args_is_help=True)

NOTHING = "–"


@app.callback()
def config() -> None:
    """Show the configuration."""


@app.command()
def show(as_json: Json = False) -> None:
    """Print every setting as it is in effect, without secrets; a star marks what was set."""
    from afterword.streams.settings import shown_as_dict, shown_settings

    settings = start()
    if as_json:
        print_json(shown_as_dict(settings))
        return
    found = list(shown_settings(settings))
    width = max(len(setting.variable) for setting in found)
    for setting in found:
        value = NOTHING if setting.value is None else setting.value
        typer.echo(f"{' ' if setting.is_default else '*'} {setting.variable:<{width}}  {value}")
