"""`afterword usage`: add up what the LLM used for the stored episodes."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from afterword.commands.common import Json, print_json, print_table, start_command

if TYPE_CHECKING:
    from afterword.streams.settings import Settings
    from afterword.streams.stores.episodes import UsageBy, UsageTotals

By = Annotated[
    Literal["tenant", "user", "model", "day"], typer.Option("--by", help="What to group by. Days are in UTC.")
]
COLUMNS = ("episodes", "prompt tokens", "cached", "answer tokens", "seconds")


def usage(by: By = "model", as_json: Json = False) -> None:
    """Add up the tokens, seconds and cost of the last revision of every stored episode.

    The cost uses the current AFTERWORD_LLM__PROMPT_PRICE, __CACHED_PRICE and __ANSWER_PRICE.
    """
    settings = start_command()
    found = asyncio.run(_read(settings, by))
    costs = [settings.llm.cost(*one[2:5]) for one in found]
    if as_json:
        print_json([{by: one.group, **_numbers(one), "cost": cost} for one, cost in zip(found, costs, strict=True)])
        return
    has_cost = any(cost is not None for cost in costs)
    rows = [
        [one.group or "–", *(f"{number:,.0f}" for number in one[1:]), *([f"{cost:,.2f}"] if cost is not None else [])]
        for one, cost in zip(found, costs, strict=True)
    ]
    print_table([by, *COLUMNS, *(["cost"] if has_cost else [])], rows, none="no episodes are stored")


async def _read(settings: "Settings", by: "UsageBy") -> "list[UsageTotals]":
    from afterword.streams.stores.opening import open_stores

    async with open_stores(settings) as stores:
        return await stores.episodes.usage(by)


def _numbers(one: "UsageTotals") -> dict[str, float]:
    return {name: number for name, number in one._asdict().items() if name != "group"}
