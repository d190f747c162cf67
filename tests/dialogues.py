"""Messages from dialogues of research corpora, in the format in which Def-DTS publishes `SuperDialseg` and `TIAGE`.

`dialogue` holds turns joined by `[NEWLINE]`, each `speaker: text`; `[BOUNDARY]` in place of a turn marks a shift of
topic at the next one. Dialogues have no times, so each turn gets a fixed one, which makes a replay reproducible.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import orjson

from afterword.schemas import InvalidRecord, MessageCreated
from afterword.schemas.messages import Role

NEWLINE = "[NEWLINE]"
BOUNDARY = "[BOUNDARY]"
USER = "user"
FIRST_SENT_AT = datetime(2025, 1, 1, 12, tzinfo=UTC)
SECONDS_A_TURN = 10


def expand(conversation_id: str, dialogue: str) -> list[MessageCreated]:
    """Make the messages `{conversation_id}-1`, `-2` … of one dialogue.

    Raises: InvalidRecord if a turn has no speaker, or if there is no turn.
    """
    messages = [_message(conversation_id, n, *turn) for n, turn in enumerate(_turns(dialogue), start=1)]
    if not messages:
        raise InvalidRecord("invalid_dialogue", "dialogue: no turns")
    return messages


def message_lines(lines: Iterable[bytes]) -> list[bytes]:
    """Expand the lines `{"id", "dialogue"}` of a corpus to JSON messages; any other line stays as it is."""
    found: list[bytes] = []
    for line in lines:
        row = orjson.loads(line)
        if "dialogue" in row:
            found += [message.to_json() for message in expand(row["id"], row["dialogue"])]
        else:
            found.append(line)
    return found


def _turns(dialogue: str) -> Iterator[tuple[str, str, bool]]:
    """Yield speaker, text, and whether the topic shifts with this turn."""
    shifts = False
    for line in (part.strip() for part in dialogue.split(NEWLINE)):
        if line == BOUNDARY:
            shifts = True
        elif line:
            speaker, colon, text = line.partition(":")
            if not colon:
                raise InvalidRecord("invalid_dialogue", "dialogue: a turn has no speaker")
            yield speaker.strip(), text.strip(), shifts
            shifts = False


def _message(conversation_id: str, n: int, speaker: str, text: str, shifts: bool) -> MessageCreated:
    return MessageCreated(
        id=f"{conversation_id}-{n}",
        conversation_id=conversation_id,
        user_id=f"{conversation_id}-{USER}",
        role=_role(speaker),
        content=text,
        sent_at=FIRST_SENT_AT + timedelta(seconds=SECONDS_A_TURN * (n - 1)),
        is_continuation=None if n == 1 else not shifts,
    )


def _role(speaker: str) -> Role:
    return "user" if speaker.lower() == USER else "assistant"


def interleaved(lines: Iterable[bytes], width: int) -> list[bytes]:
    """Interleave conversations like live traffic: one line of each in turn, `width` conversations at a time."""
    waiting: dict[str, deque[bytes]] = {}
    for line in lines:
        waiting.setdefault(orjson.loads(line)["conversation_id"], deque()).append(line)
    mixed = []
    while waiting:
        for name in list(islice(waiting, width)):
            mixed.append(waiting[name].popleft())
            if not waiting[name]:
                del waiting[name]
    return mixed
