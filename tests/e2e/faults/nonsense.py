"""Answers of an LLM server that are not summaries: bytes, texts, statuses, and silence."""

import asyncio
import gzip
import random
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
from aiohttp import web

from tests.e2e.faults.hostile_records import NESTED
from tests.nasty_texts import RUNS, mixed, run
from tests.openai_server import TEXTS, Outcome, after, answers, fails, rate_limited, resets, says, success

BOMB_BYTES = 200 * 2**20
HANGS_SECONDS = 30.0
"""Longer than the worker waits."""
ENDLESS_BYTES = 64 * 2**20
LARGE = 500_000
CLOSINGS = ("Then some.", "Then more.", "Then all.")
"""Endings for an answer with few long words, because the quality gate requires three sentences about the same subject.
"""
COMPLETION: dict[str, Any] = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"content": "x"}}]}


async def faithful(request: web.Request) -> web.StreamResponse:
    """Return a good answer: some long words of each message."""
    asked = (await request.json())["messages"][-1]["content"]
    transcript = asked[asked.rindex("BEGIN TRANSCRIPT") :] if "BEGIN TRANSCRIPT" in asked else asked
    said = [line[:500].partition(": ")[2] for line in transcript.splitlines() if line.startswith("[")]
    words = [[word.lower() for word in text.split() if word.isalpha() and len(word) > 5][:3] for text in said]
    leads = ("First", "Then", "After", "Later", "Last")
    sentences = [f"{lead} {' and '.join(some)}." for lead, some in zip(leads, filter(None, words), strict=False)]
    sentences += CLOSINGS[len(sentences) :]
    first, long = sentences[0], " ".join(sentences)
    texts = {"title": first.split()[-1], "short_summary": first, "long_summary": long, "rolling_summary": long}
    return await success(texts)(request)


def nonsense(chance: random.Random) -> Outcome:
    """Give a different answer to each request; one in three is good."""

    async def respond(request: web.Request) -> web.StreamResponse:
        made = chance.choice(OUTCOMES)(chance) if chance.random() < 0.67 else faithful
        return await made(request)

    return respond


def some_text(chance: random.Random) -> str:
    length = chance.choice((40, 2_000, 100_000, LARGE))
    return mixed(length) if chance.random() < 0.2 else run(chance.choice(RUNS), length)


def text(chance: random.Random) -> Outcome:
    return answers(some_text(chance).encode(errors="ignore").decode(), chance.choice(("stop", "length", "tool_calls")))


def strange_fields(chance: random.Random) -> Outcome:
    said = some_text(chance).encode(errors="ignore").decode()
    return success({name: chance.choice((said, TEXTS[name])) for name in TEXTS})


def wrong_schema(chance: random.Random) -> Outcome:
    wrong = chance.choice(
        ({}, {**TEXTS, "title": ["x"]}, {**TEXTS, "long_summary": None}, {"title": {}}, {**TEXTS, "x": 1})
    )
    return success(wrong)


def broken_json(chance: random.Random) -> Outcome:
    good = orjson.dumps(TEXTS).decode()
    broken = (
        good[: chance.randrange(len(good))],
        f"```json\n{good}",
        good * 3,
        NESTED.decode(),
        '{"title": ' + "9" * 5_000 + "}",
    )
    return answers(chance.choice((*broken, '{"title": "\\ud800"}', '{"title":"a","title":"b"}')))


def raw_body(chance: random.Random) -> Outcome:
    """Answer with a body that is not the protocol."""
    bodies = (
        b"",
        b"null",
        b"[]",
        b"\xff\xfe" * 1_000,
        chance.randbytes(5_000),
        NESTED,
        b'{"choices": []}',
        b'{"choices": null}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": ' + NESTED + b"}}]}",
        b'{"choices": [{"message": {"content": null, "tool_calls": [{}]}}]}',
        b'{"choices": [{"message": {"content": "\\ud800"}}]}',
        b'{"error": {"message": "\\u001b[2J", "code": 7}}',
        orjson.dumps({**COMPLETION, "usage": {"prompt_tokens": -(2**62), "completion_tokens": "many"}}),
        orjson.dumps({**COMPLETION, "usage": {"prompt_tokens": 2**62, "completion_tokens": 2**62}}),
        orjson.dumps({**COMPLETION, "model": "\x1b[2J\n" * 10_000}),
        b'{"usage": {"prompt_tokens": ' + b"9" * 5_000 + b"}}",
    )
    kinds = ("application/json", "text/html", "image/png", "application/json; charset=utf-7", "x" * 1_000)
    return responds(
        chance.choice(bodies), chance.choice((200, 200, 200, 204, 201)), {"Content-Type": chance.choice(kinds)}
    )


def encoded(chance: random.Random) -> Outcome:
    """Bodies that do not match Content-Encoding, or decompress to very much."""
    good = orjson.dumps(COMPLETION)
    bodies = (("gzip", gzip_bomb()), ("deflate", zlib_bomb()), ("gzip", gzip.compress(good)[:-9]), ("gzip", good))
    coding, body = chance.choice((*bodies, ("br", good), ("zstd", good), ("gzip, gzip", gzip.compress(gzip_bomb()))))
    return responds(body, 200, {"Content-Type": "application/json", "Content-Encoding": coding})


@cache
def gzip_bomb() -> bytes:
    return gzip.compress(b'{"choices": [{"message": {"content": "' + b"a" * BOMB_BYTES)


@cache
def zlib_bomb() -> bytes:
    return zlib.compress(b" " * BOMB_BYTES)


def status(chance: random.Random) -> Outcome:
    after_seconds = chance.choice(
        (None, "1", "0", "-1", "1e9", "99999999999999999999", "soon", "Wed, 21 Oct 2099 07:28:00 GMT")
    )
    named = {"retry_after": after_seconds} if after_seconds else {}
    return chance.choice(
        (
            rate_limited(after_seconds),
            fails(500, **named),
            fails(503, **named),
            fails(400, {"message": "x" * LARGE}),
            fails(413),
            fails(418),
            says("<html>" + "x" * LARGE, 502),
            responds(b"", 301, {"Location": "/v1/chat/completions"}),
            responds(b"", 200, {f"X-{n}": "y" * 4_000 for n in range(40)}),
        )
    )


def silence(chance: random.Random) -> Outcome:
    return chance.choice((after(HANGS_SECONDS, success()), after(1.0, success()), half_open, endless, resets(), lies))


async def half_open(request: web.Request) -> web.StreamResponse:
    """Begin a response and never end it."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"choices": [{"message": {"content": "')
    await asyncio.sleep(HANGS_SECONDS)
    return response


async def endless(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for _ in range(ENDLESS_BYTES // LARGE):
        await response.write(b" " * LARGE)
    return response


async def lies(request: web.Request) -> web.StreamResponse:
    """End the body before its announced length."""
    response = web.StreamResponse(headers={"Content-Length": "100000"})
    await response.prepare(request)
    await response.write(b'{"choices"')
    assert request.transport is not None
    request.transport.close()
    return response


def responds(body: bytes, code: int, headers: dict[str, str]) -> Outcome:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, status=code, headers=headers)

    return respond


OUTCOMES: tuple[Callable[[random.Random], Outcome], ...] = (
    text,
    strange_fields,
    wrong_schema,
    broken_json,
    raw_body,
    encoded,
    status,
    silence,
)
