"""Measures what is known about a user without an LLM: python -m benchmarks.profile [--set SET] [--part PART]

Each row of `benchmarks/data/profile_SET.jsonl` goes the whole way: its messages are summarized as with the default
settings, stored and indexed, and the profile and the answer of `recall` are judged.

- trap: messages that only sound like facts about their user. A trap counts if it leaves a fact that is not one, or
  costs one that was known before.
- true: the shares of the facts in ordinary messages that are in the profile.
- change: the shares of known facts that are not in the profile any more after messages that end them, and of new ones.
- about_me: questions about the user as such. They are answered if the texts of the hits have all that is asked for.

`--show` also prints what went wrong.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

from afterword.reading.memory import Memory
from afterword.schemas import EpisodeClosed
from afterword.streams.summarizer.embedders import LocalEmbedder, QueryEmbedding
from benchmarks.data import DATA, STARTED_AT, closed_episode, message_of
from benchmarks.measuring import show
from benchmarks.recall import remembered

ALL = 1_000_000
Said = Sequence[Mapping[str, str]]
"""Messages with their roles and texts."""


def rows_of(name: str, part: str) -> list[dict[str, Any]]:
    lines = (DATA / f"profile_{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if part in (row["part"], "all")]


def episodes_of(user_id: str, conversations: Sequence[tuple[int, Said]]) -> Iterator[EpisodeClosed]:
    """Yield an episode for each conversation, which took place so many days after the first."""
    for number, (day, said) in enumerate(conversations, 1):
        at = STARTED_AT + timedelta(days=day)
        messages = [
            message_of(str(n), one["role"], one["text"], at + timedelta(seconds=30 * n), user_id)
            for n, one in enumerate(said)
        ]
        if messages:
            yield closed_episode(f"{user_id}-{number}", 1, messages, user_id)


async def judged(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, bool, str]]:
    """Judge each row: the name of its figure, whether it is right, and what was found."""
    episodes: list[EpisodeClosed] = []
    for row in rows:
        earlier, later = row.get("earlier", ()), row.get("messages") or row.get("later") or ()
        episodes += episodes_of(f"{row['id']}-before", [(0, earlier)])
        told = [(3 * day, said) for day, said in enumerate(row["said"])] if "said" in row else None
        episodes += episodes_of(row["id"], told or [(0, earlier), (row.get("days", 1), later)])
    async with AsyncExitStack() as opened:
        make = await opened.enter_async_context(remembered(episodes))
        memory = make(embed=QueryEmbedding(LocalEmbedder()))
        return [one for row in rows for one in await JUDGES[row["kind"]](memory, row)]


async def known(memory: Memory, user_id: str, conversation_id: str | None = None) -> list[str]:
    """Return the user's current facts, or those that a conversation states."""
    found = (await memory.profile(user_id, None, ALL)).facts
    return [
        fact.statement.casefold()
        for fact in found
        if conversation_id is None or any(source.conversation_id == conversation_id for source in fact.sources)
    ]


async def judge_trap(memory: Memory, row: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    before, after = await known(memory, f"{row['id']}-before"), await known(memory, row["id"])
    allowed = [one.casefold() for one in row["right"]]
    false = [one for one in after if one not in before and not any(word in one for word in allowed)]
    kept = [one.casefold() for one in row["must_keep"] if _has(before, one)]
    lost = [one for one in kept if not _has(after, one)]
    return [("traps without harm", not false and not lost, f"{false} lost {lost}"), ("true ones kept", not lost, "")]


async def judge_true(memory: Memory, row: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    found = await known(memory, row["id"])
    figure = f"true facts found, {'English' if row['lang'] == 'en' else 'other languages'}"
    return [(figure, _has(found, fact["value"]), f"{fact['value']} in {found}") for fact in row["facts"]]


async def judge_change(memory: Memory, row: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    before, after = await known(memory, f"{row['id']}-before"), await known(memory, row["id"])
    still = await known(memory, row["id"], f"{row['id']}-1")
    results = [("facts known before their end", was := _has(before, row["gone"]), f"{row['gone']} in {before}")]
    if was:
        results.append(("old facts ended", not _has(still, row["gone"]), f"{row['gone']} in {still}"))
    if row["now"]:
        results.append(("new facts found", _has(after, row["now"]), f"{row['now']} in {after}"))
    return results


async def judge_question(memory: Memory, row: Mapping[str, Any]) -> list[tuple[str, bool, str]]:
    hits = await memory.recall(row["ask"], user_id=row["id"], tenant_id=None)
    texts = [match.content.casefold() for hit in hits for match in hit.matches]
    answered = all(_has(texts, one) for one in row["answer"])
    return [(f"questions about the user, {row['group']}", answered, f"{row['ask']}: {texts}")]


def _has(texts: Sequence[str], value: str) -> bool:
    return any(value.casefold() in text for text in texts)


JUDGES = {"trap": judge_trap, "true": judge_true, "change": judge_change, "about_me": judge_question}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Facts about people: a table.")
    sets = "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"
    parser.add_argument("--set", choices=sets, default="third", help="labelled set (default: third)")
    parser.add_argument("--part", choices=("dev", "test", "hard", "all"), default="test")
    parser.add_argument("--show", nargs="*", choices=JUDGES, default=[], help="print what went wrong in these")
    given = parser.parse_args()
    counts: defaultdict[str, list[bool]] = defaultdict(list)
    for kind in JUDGES:
        rows = [row for row in rows_of(given.set, given.part) if row["kind"] == kind]
        for figure, is_right, found in asyncio.run(judged(rows)):
            counts[figure].append(is_right)
            if kind in given.show and not is_right:
                print(f"{figure}: {found[:300]}")
    show(
        f"Facts about people without an LLM, {given.set} set, {given.part}",
        [
            {"": figure, "right": str(sum(each)), "of": str(len(each)), "share": f"{sum(each) / len(each):.3f}"}
            for figure, each in counts.items()
        ],
    )


if __name__ == "__main__":
    main()
