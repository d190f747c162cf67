"""Episodes made of what people say, for tests that read or summarize them."""

import json
from pathlib import Path
from typing import Any

from afterword.schemas import EpisodeClosed
from tests.dialogues import expand
from tests.samples import a_closed_episode, an_episode_message

DIALOGUES = Path(__file__).parents[2] / "data" / "dialogues.jsonl"

Turn = tuple[str, str]
"""Role and content."""


def an_episode_of(*turns: Turn, **fields: Any) -> EpisodeClosed:
    messages = tuple(an_episode_message(f"m{n}", n, role=role, content=text) for n, (role, text) in enumerate(turns))
    return a_closed_episode(messages=messages, message_count=len(messages), **{"overlap": (), **fields})


def dialogues() -> list[list[Turn]]:
    rows = map(json.loads, DIALOGUES.read_text().splitlines())
    return [[(said.role, said.content) for said in expand(row["id"], row["dialogue"])] for row in rows]
