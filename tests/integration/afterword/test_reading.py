"""Reading back from the SQLite file: `Memory`, and the commands on top of it."""

import asyncio
import io
import json
import re
import shlex
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import timedelta

import pytest
import pytest_asyncio

from afterword import Memory
from afterword.cli import main
from afterword.operating.rebuild import rebuild_index
from afterword.schemas import MessageCreated
from afterword.streams.settings import EmbedderSettings, Settings
from afterword.streams.stores.messages import ArchivedMessage
from afterword.streams.stores.opening import open_stores
from afterword.streams.summarizer.conversations import Scope, counted_in
from tests.samples import NOON, a_cause, a_message, a_stored_episode, a_summary
from tests.vectors import put

MESSAGES = 1000
IN_EPISODES = 990


def said(n: int) -> MessageCreated:
    text = f"Text {n}, about topic{n // 3 + 1}x."
    return a_message(f"m{n}", tenant_id="t1", content=text, sent_at=NOON + timedelta(seconds=n))


@pytest_asyncio.fixture
async def settings(make_settings: Callable[..., Settings]) -> Settings:
    """Return settings with a conversation of 1,000 messages, the first 990 of them in 330 episodes. Nothing is indexed
    yet. Words alone are searched, because a vector finds something for any word.
    """
    made = make_settings().model_copy(update={"embedder": EmbedderSettings(provider="none")})
    async with open_stores(made) as stores:
        await stores.prepare_database()
        await stores.messages.put_many([ArchivedMessage(said(n), 0, n) for n in range(MESSAGES)])
        for ordinal in range(1, IN_EPISODES // 3 + 1):
            stored = a_stored_episode(ordinal)
            if ordinal > IN_EPISODES // 3 - 5:  # as many as the tests look at
                await stores.episodes.put(stored, None)
            known = await stores.episodes.conversation("c1")
            counted = counted_in(known, Scope.of(stored.summary), stored.summary, a_cause(ordinal))
            await stores.episodes.put_conversation(counted, known)
        await stores.messages.assign("c1:1", [ArchivedMessage(said(n), 0, n) for n in range(IN_EPISODES)])
    return made


async def test_long_conversation_is_read_in_few_documents(settings: Settings) -> None:
    async with Memory.from_settings(settings) as memory:
        found = await memory.context("c1", keep_recent=4)
        page = await memory.episodes("c1", limit=2)
    assert found is not None
    assert [message.id for message in found.messages] == [f"m{n}" for n in range(IN_EPISODES, MESSAGES)]
    assert (found.events_full, found.omitted, found.title) == (MESSAGES, 0, "Title 1")
    assert found.tokens_full > 100 * 330
    assert [stored.summary.ordinal for stored in page.episodes] == [330, 329]


async def test_index_is_rebuilt_and_searched(settings: Settings) -> None:
    async with Memory.from_settings(settings) as memory:
        assert await memory.recall("topic328x", user_id="u1", tenant_id="t1") == []
        done = await rebuild_index(settings, lambda _: None, everything=False)
        assert (done.written, done.incomplete) == (5, 0)
        hits = await memory.recall("topic328x", user_id="u1", tenant_id="t1")
        assert [hit.episode_id for hit in hits] == ["c1:328"]
        assert await memory.recall("topic328x", user_id="u1", tenant_id=None) == []
    assert (await rebuild_index(settings, lambda _: None, everything=False)).written == 0


async def test_search_needs_no_worker(settings: Settings) -> None:
    await rebuild_index(settings, lambda _: None, everything=False)
    async with Memory.from_settings(settings) as memory:
        async with open_stores(settings) as stores:
            await put(stores.index, a_summary(1000), "…")  # as a summarizer's, while `afterword dev` runs
            during = await memory.recall("topic328x", user_id="u1", tenant_id="t1")
        after = await memory.recall("topic328x", user_id="u1", tenant_id="t1")
    assert [hit.episode_id for hit in during] == [hit.episode_id for hit in after] == ["c1:328"]


@pytest.fixture
def run(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process; return exit code, standard output and standard error."""
    monkeypatch.setenv("AFTERWORD_SQLITE__PATH", str(settings.sqlite.path))
    monkeypatch.setenv("AFTERWORD_EMBEDDER__PROVIDER", "none")

    def run(*arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(arguments)
        return int(ended.value.code or 0), out.getvalue(), err.getvalue()

    return run


def test_commands_show_what_memory_reads(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("index", "rebuild")
    assert (code, out) == (0, "5 of 5 episodes written\n")
    code, out, _ = run("recall", "topic328x", "--user", "u1", "--tenant", "t1", "--json")
    assert (code, [hit["message_ids"] for hit in json.loads(out)]) == (0, [["m981", "m982", "m983"]])
    code, out, _ = run("recall", "topic328x", "--user", "u1", "--tenant", "t1")
    said = {f"2026-01-05, user: Text {n}, about topic328x. (m{n})" for n in (981, 982, 983)}
    columns, hit = (line.split("\t") for line in out.splitlines())
    assert columns[:2] == ["score", "episode"]
    assert hit[1:3] + hit[4:] == ["c1:328", "2026-01-05 12:02", "Title 328: A flight to Rome was booked."]
    # a pending message that differs in one word may stand beside them as a correction
    assert set(re.split(r"(?<=\)) ", hit[3])) >= said
    code, out, err = run("recall", "topic328x", "--user", "u1")
    assert (code, out, err) == (
        0,
        "",
        "nothing is known about this; data of tenants was not searched, see --tenant\n",
    )
    code, out, err = run("recall", "topic328x and a giraffe", "--user", "u1", "--tenant", "t1", "--min-coverage", "1")
    assert (code, out, err) == (0, "", "nothing is known about this\n")
    code, out, err = run("episodes", "c1", "--limit", "2")
    assert [line.split("\t")[0] for line in out.splitlines()] == ["no.", "330", "329"]
    assert err == "older episodes: --before 329\n"
    code, out, _ = run("episodes", "c1", "--before", "329", "--json")
    assert [found["episode_id"] for found in json.loads(out)["episodes"]] == ["c1:328", "c1:327", "c1:326"]
    assert json.loads(out)["next_before"] is None
    code, out, _ = run("context", "c1", "--messages", "2")
    assert out.splitlines()[:2] == ["Summary so far:", "    Title 1"]
    assert out.splitlines()[-1].endswith(f"11 of {MESSAGES} events")
    found = json.loads(run("context", "c1", "--messages", "2", "--json")[1])
    assert (found["title"], found["episode_count"], found["events_full"]) == ("Title 1", 330, MESSAGES)


def test_users_and_conversations_are_listed(run: Callable[..., tuple[int, str, str]]) -> None:
    code, out, _ = run("users", "--tenant", "t1")
    assert (code, [line.split("\t") for line in out.splitlines()]) == (
        0,
        [["user", "conversations", "episodes", "last message"], ["u1", "1", "5", "2026-01-05 12:02"]],
    )
    code, out, _ = run("users", "--tenant", "t1", "--prefix", "u1", "--json")
    assert [one["user_id"] for one in json.loads(out)["users"]] == ["u1"]
    code, out, err = run("users")
    assert (code, out, err) == (0, "", "nobody has an episode; data of tenants was not searched, see --tenant\n")
    code, out, _ = run("conversations", "--user", "u1", "--tenant", "t1")
    columns, *rows = [line.split("\t") for line in out.splitlines()]
    assert columns == ["conversation", "episodes", "messages", "last message", "title"]
    assert rows == [["c1", "330", "990", "2026-01-05 12:02", "Title 1"]]
    code, out, err = run("conversations", "--user", "u2", "--tenant", "t1")
    assert (code, out, err) == (0, "", "no conversation has a summary\n")
    code, _, err = run("users", "--after", "none")
    assert (code, err) == (1, "afterword: after is not a cursor from an earlier page\n")


async def test_list_names_the_next_page(settings: Settings, run: Callable[..., tuple[int, str, str]]) -> None:
    async with open_stores(settings) as stores:
        for user in ("u2", "u 3"):
            stored = a_stored_episode(1, conversation_id=f"of-{user}", user_id=user, participants=(user,))
            await stores.episodes.put(stored, None)
    seen, more = [], ()
    for _ in range(3):
        code, out, err = await asyncio.to_thread(run, "users", "--tenant", "t1", "--limit", "1", *more)
        seen += [line.split("\t")[0] for line in out.splitlines()[1:]]
        more = tuple(shlex.split(err.removeprefix("more: ")))
    assert (code, seen, more) == (0, ["u2", "u1", "u 3"], ())
