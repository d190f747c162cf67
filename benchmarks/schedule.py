"""Slots and who has them: how busy they were, and how busy they could have been. No I/O."""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from benchmarks.llm import Span


class Call(NamedTuple):
    """One that is to be made: those of a conversation one after the other, in order."""

    conversation: str
    seconds: float


def ideal(calls: Sequence[Call], slots: int) -> list[Span]:
    """Schedule without overhead: a slot that becomes free takes the first call whose conversation has none running.

    Seconds from the start; in the order of their starts.
    """
    waiting, running, now = list(calls), list[tuple[float, str]](), 0.0
    busy: set[str] = set()
    spans = []
    while waiting:
        at = next((at for at, call in enumerate(waiting) if call.conversation not in busy), None)
        if at is None or len(running) == slots:
            now, ended = heapq.heappop(running)
            busy.discard(ended)
            continue
        call = waiting.pop(at)
        busy.add(call.conversation)
        heapq.heappush(running, (now + call.seconds, call.conversation))
        spans.append(Span(call.conversation, now, now + call.seconds))
    return spans


def busy_share(spans: Sequence[Span], slots: int, until: float) -> float:
    """Share of the slots' time from the first start to `until` in which there was a call in them."""
    began = min(span.began for span in spans)
    used = sum(max(0.0, min(span.ended, until) - span.began) for span in spans)
    return used / (slots * (until - began))


def last_start(spans: Iterable[Span], slow: Iterable[str] = ()) -> float:
    """Time until which work was queued: of conversations that are not `slow`, whose calls wait for one another."""
    left_out = set(slow)
    return max(span.began for span in spans if span.conversation not in left_out)


def calls_of(spans: Sequence[Span]) -> list[Call]:
    """The same calls, in the order of their starts."""
    return [Call(span.conversation, span.ended - span.began) for span in sorted(spans, key=lambda span: span.began)]
