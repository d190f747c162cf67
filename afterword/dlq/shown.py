"""Letters for people and for programs. What others wrote is passed on as data: a terminal needs `printable`."""

from typing import Any

from afterword.schemas.dead_letters import DeadLetter
from afterword.terminal import printable


def line(found: DeadLetter) -> str:
    said = f"{found.stage} {found.error_type}  {found.conversation_id or '–'}  {found.problem}"
    return f"{found.address}  {found.failed_at:%Y-%m-%d %H:%M:%S}  {printable(said)}"


def row(found: DeadLetter) -> dict[str, Any]:
    """All but the content."""
    return {
        "address": found.address,
        "failed_at": found.failed_at.isoformat(),
        "stage": found.stage,
        "type": found.error_type,
        "problem": found.problem,
        "conversation_id": found.conversation_id,
        "origin": found.origin and found.origin._asdict(),
        "bytes": len(found.value or b""),
    }


def whole(found: DeadLetter) -> dict[str, Any]:
    """Bytes that are not UTF-8 are replaced; `--raw` shows them."""
    headers = [[name, _text(value)] for name, value in found.headers]
    return {**row(found), "headers": headers, "value": _text(found.value)}


def page(found: DeadLetter) -> str:
    lines = [f"{name:<16} {value}" for name, value in row(found).items()]
    lines += [f"{'header':<16} {name}: {_text(value)}" for name, value in found.headers]
    return printable("\n".join([*lines, "", _text(found.value) or ""]))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
