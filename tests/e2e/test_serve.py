"""`afterword serve` as a process, on real servers and with real workers."""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from afterword.embedded import Process
from afterword.embedded.claims import free_ports
from afterword.operating.person import Receipt, verify
from afterword.serving.events import STREAMS_PER_KEY
from afterword.serving.requests import new_key
from afterword.serving.server import HEADER_SECONDS, MOST_STRANGERS
from afterword.streams.kafka.clients import running_producer
from afterword.streams.stores.opening import open_stores
from tests.e2e.deployment import WAIT_SECONDS, Deployment, environment_of
from tests.e2e.test_redaction import documents
from tests.samples import a_summary

ROLES = ("segmenter", "summarizer", "archiver")
ANN = "ann-5f2e"


class Serving:
    """A server's process, and its clients."""

    def __init__(self, deployment: Deployment, **settings: Any) -> None:
        self._deployment = deployment
        self.port = free_ports(1)[0]
        self._settings = {"port": self.port, "requests_per_minute": 0, **settings}
        self.process: Process

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        ours = {f"AFTERWORD_SERVE__{name.upper()}": str(value) for name, value in self._settings.items()}
        environment = {**environment_of(self._deployment.settings), **ours}
        log = self._deployment.directory / "logs" / "serve.log"
        command = [sys.executable, "-m", "afterword", "serve"]
        self.process = Process("serve", command, log, environment=environment)
        await self.until(lambda answer: answer.status_code == 200, "/readyz")

    async def until(self, condition: Callable[[httpx.Response], bool], path: str, key: str = "") -> httpx.Response:
        """Ask until the answer is as expected."""
        deadline = time.monotonic() + WAIT_SECONDS
        async with self.client(key) as client:
            while time.monotonic() < deadline:
                assert self.process.returncode is None, self.process.log.read_text()
                try:
                    answer = await client.get(path)
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                if condition(answer):
                    return answer
                await asyncio.sleep(0.1)
        raise AssertionError(f"it did not happen in time: {path}")

    def client(self, key: str = "") -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.address, headers=headers, timeout=30, trust_env=False)

    @asynccontextmanager
    async def events(self, key: str = "", last: str | None = None, **wanted: str) -> AsyncIterator["Events"]:
        headers = {"Last-Event-ID": last} if last else {}
        async with (
            self.client(key) as client,
            client.stream("GET", "/v1/events", params=wanted, headers=headers) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            yield Events(answer.aiter_lines())


class Events:
    """Reads a stream of server-sent events."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last: str | None = None

    async def next(self) -> tuple[str, dict[str, Any]]:
        """Return type and data of the next event."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            async for line in self._lines:
                name, _, value = line.partition(": ")
                fields[name] = value
                if line:
                    continue
                self.last = fields.get("id", self.last)
                if "data" in fields:
                    return fields["event"], json.loads(fields["data"])
                fields = {}
        raise AssertionError("the stream ended")


def messages(conversation_id: str, count: int, first: int = 0, **fields: Any) -> dict[str, Any]:
    made = [
        {
            "id": f"m{n}",
            "conversation_id": conversation_id,
            "user_id": "u1",
            "role": "assistant" if n % 2 else "user",
            "content": f"The flight to Rome on day {n} costs {100 + n} euros.",
            **fields,
        }
        for n in range(first, first + count)
    ]
    return {"messages": made}


@asynccontextmanager
async def serving(deployment: Deployment, **settings: Any) -> AsyncIterator[Serving]:
    server = Serving(deployment, **settings)
    await server.start()
    try:
        yield server
    finally:
        server.process.kill()


async def feed_runs(server: Serving) -> None:
    """Wait until the stream of events is open."""
    deadline = time.monotonic() + WAIT_SECONDS
    async with server.client() as client:
        while time.monotonic() < deadline:
            async with client.stream("GET", "/v1/events") as answer:
                if answer.status_code == 200:
                    return
            await asyncio.sleep(0.1)
    raise AssertionError("no stream of events")


async def test_http_message_becomes_a_streamed_summary_and_a_context(deployment: Deployment) -> None:
    for role in ROLES:
        deployment.start(role)
    async with serving(deployment) as server, server.client() as client:
        await feed_runs(server)
        async with server.events() as events:
            assert (await client.post("/v1/messages", json=messages("a/b", 4))).status_code == 202
            assert (await client.post("/v1/conversations/a%2Fb/flush", json={})).status_code == 202
            found = dict([await events.next(), await events.next()])
            assert found["summary.created"]["message_ids"] == ["m0", "m1", "m2", "m3"]
            assert found["episode.closed"]["conversation_id"] == "a/b"
            last = events.last
        path = "/v1/conversations/a%2Fb"
        context = await server.until(lambda answer: len(answer.json().get("messages", ())) == 4, f"{path}/context")
        assert context.json()["episode_count"] == 1
        listed = (await client.get("/v1/conversations", params={"user_id": "u1"})).json()["conversations"]
        assert [one["conversation_id"] for one in listed] == ["a/b"]
        recalled = await client.post("/v1/recall", json={"query": "flight Rome", "user_id": "u1"})
        assert [hit["episode_id"] for hit in recalled.json()["hits"]] == ["a%2Fb:1"]

        assert (await client.delete(path)).status_code == 202
        async with server.events(last=last) as events:  # the server was asked meanwhile, and nothing is missed
            kind, deleted = await events.next()
            assert (kind, deleted["episode_id"]) == ("summary.deleted", "a%2Fb:1")
        await server.until(lambda answer: answer.status_code == 404, f"{path}/messages")
        assert await asyncio.to_thread(server.process.stop, WAIT_SECONDS) == 0


class Load:
    """Sends batches, and listens with a client that resumes where it was."""

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._ending = asyncio.Event()
        self.acknowledged: dict[str, int] = {}
        """Number of messages by conversation."""
        self.heard: list[str] = []

    @property
    def total(self) -> int:
        return sum(self.acknowledged.values())

    def end(self) -> None:
        self._ending.set()

    async def send(self, name: str) -> None:
        batch = 0
        async with self._server.client() as client:
            while not self._ending.is_set():
                try:
                    answer = await client.post("/v1/messages", json=messages(name, 10, 10 * batch))
                except httpx.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                if answer.status_code == 202:
                    batch += 1
                    self.acknowledged[name] = 10 * batch

    async def listen(self) -> None:
        """Receive episodes forever."""
        last: str | None = None
        while True:
            try:
                async with self._server.events(last=last, type="episode.closed") as events:
                    try:
                        while True:
                            self.heard.append((await events.next())[1]["episode_id"])
                    finally:
                        last = events.last or last
            except (httpx.TransportError, AssertionError, TimeoutError):
                await asyncio.sleep(0.2)

    async def hears(self, number: int) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while len(self.heard) < number:
            assert time.monotonic() < deadline, f"{len(self.heard)} of {number} episodes"
            await asyncio.sleep(0.05)

    async def grows(self, by: int) -> None:
        before, deadline = self.total, time.monotonic() + WAIT_SECONDS
        while self.total < before + by:
            assert time.monotonic() < deadline, "nothing is acknowledged"
            await asyncio.sleep(0.05)


async def test_killed_server_loses_no_acknowledged_write_and_streams_resume(deployment: Deployment) -> None:
    for role in ROLES:
        deployment.start(role)
    async with serving(deployment) as server:
        await feed_runs(server)
        load = Load(server)
        listening = asyncio.create_task(load.listen())
        senders = [asyncio.create_task(load.send(f"c{n}")) for n in range(4)]
        for _ in range(3):
            await load.grows(200)
            server.process.kill()
            await server.start()
        load.end()
        await asyncio.gather(*senders)
        async with server.client() as client:
            for name in load.acknowledged:
                assert (await client.post(f"/v1/conversations/{name}/flush", json={})).status_code == 202
        report = await deployment.audit()
        assert report.clean, report.lines()
        async with open_stores(deployment.settings) as stores:
            for name, count in load.acknowledged.items():
                known = await stores.episodes.conversation(name)
                assert known is not None
                assert known.message_count >= count
        closed = [episode.episode_id for episode in await deployment.episodes()]
        await load.hears(len(closed))
        listening.cancel()
        assert sorted(load.heard) == sorted(closed)


async def test_hostile_clients_get_the_right_status_and_block_nothing(deployment: Deployment) -> None:
    async with serving(deployment) as server, server.client() as client:
        large = await client.post(
            "/v1/messages", content=b"x" * 10_000_000, headers={"content-type": "application/json"}
        )
        assert large.status_code == 413
        with socket.create_connection(("127.0.0.1", server.port)) as large_head:
            large_head.settimeout(HEADER_SECONDS * 6)
            with suppress(ConnectionError):  # it may be refused before all of it is sent
                large_head.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Large: " + b"x" * 100_000)  # no end
            assert b" 400 " in await asyncio.to_thread(large_head.recv, 1000)
        for path in ("/v1/conversations/%2e%2e%2f%2e%2e", "/%00", "/v1/episodes/..%2f..%2fetc%2fpasswd"):
            assert (await client.get(path)).status_code == 404, path
        with socket.create_connection(("127.0.0.1", server.port)) as slow_head:
            slow_head.settimeout(HEADER_SECONDS * 6)
            slow_head.sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
            assert await asyncio.to_thread(slow_head.recv, 1000) == b""
        assert (await client.get("/livez")).status_code == 200


def resident_kilobytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


SILENT_CLIENTS = STREAMS_PER_KEY - 1
"""One stream is left for a client that reads."""
EVENTS = 400
"""Events of 10 kB each: more than a client's buffers and its queue hold."""


async def silent_client(port: int) -> socket.socket:
    """Open a client of the event stream that never reads."""
    loop, connection = asyncio.get_running_loop(), socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    await loop.sock_sendall(connection, b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    return connection


@pytest.mark.nightly
async def test_clients_that_never_read_take_little_and_stop_nobody(deployment: Deployment) -> None:
    kafka = deployment.settings.kafka
    async with serving(deployment) as server, server.client() as client:
        await feed_runs(server)
        before = resident_kilobytes(server.process.pid)
        silent: list[socket.socket] = []
        try:
            while len(silent) < SILENT_CLIENTS:  # fewer at once than an address may have without a key
                silent.append(await silent_client(server.port))
                if len(silent) % (MOST_STRANGERS // 2) == 0 or len(silent) == SILENT_CLIENTS:
                    clients = f"afterword_event_clients {len(silent)}.0"
                    await server.until(lambda answer, clients=clients: clients in answer.text, "/metrics")
            idle = resident_kilobytes(server.process.pid) - before
            assert idle < 50_000, f"{idle} kB for {SILENT_CLIENTS} idle clients"
            async with server.events() as events, running_producer(kafka) as producer:
                headers = [("ce_type", b"summary.created")]
                for number in range(1, EVENTS + 1):
                    event = a_summary(number, "c1", long_summary="All is well. " * 770).to_json()
                    await producer.send_and_wait(kafka.summaries_topic, event, key=b"c1", headers=headers)
                    # a client that reads gets everything meanwhile
                    assert (await events.next())[1]["ordinal"] == number
            assert (await client.get("/livez")).status_code == 200
            flooded = resident_kilobytes(server.process.pid) - before
            assert flooded < 125_000, f"{flooded} kB after {EVENTS} events that {SILENT_CLIENTS} clients do not read"
            await server.until(lambda answer: "afterword_event_clients 0.0" in answer.text, "/metrics")
        finally:
            for connection in silent:
                connection.close()


async def test_api_keys_admit_their_tenant_only(deployment: Deployment) -> None:
    deployment.start("archiver")
    mine, of_mine = new_key(("read", "write"), "t1", "u1")
    theirs, of_theirs = new_key(("admin",), "t2", None)
    async with open_stores(deployment.settings) as stores:
        for record in (of_mine, of_theirs):
            await stores.keys.put(record)
    async with serving(deployment, auth="keys", host="127.0.0.1") as server, server.client(mine) as client:
        assert (await client.post("/v1/messages", json=messages("c1", 2))).status_code == 202
        await server.until(lambda answer: answer.status_code == 200, "/v1/conversations/c1", mine)
        async with server.client(theirs) as other, server.client() as nobody:
            for path in ("/v1/conversations/c1", "/v1/conversations/c1/context", "/v1/conversations/c1/messages"):
                assert (await other.get(path)).status_code == 404
                assert (await nobody.get(path)).status_code == 401
            assert (await other.delete("/v1/conversations/c1")).status_code == 404
        assert mine not in server.process.log.read_text()


async def test_erasure_of_a_killed_server_finishes_on_the_next(deployment: Deployment) -> None:
    for role in ROLES:
        deployment.start(role)
    officer, of_officer = new_key(("write", "erase"), "t1", None)
    bobs, of_bob = new_key(("erase",), "t1", "bob")
    other, of_other = new_key(("admin",), "t2", None)
    async with open_stores(deployment.settings) as stores:
        for record in (of_officer, of_bob, of_other):
            await stores.keys.put(record)
    async with serving(deployment, auth="keys") as server, server.client(officer) as client:
        for name, user in (("c1", ANN), ("c2", ANN), ("c3", "bob")):
            sent = messages(name, 3, user_id=user, tenant_id="t1")
            assert (await client.post("/v1/messages", json=sent)).status_code == 202
            assert (await client.post(f"/v1/conversations/{name}/flush", json={})).status_code == 202
        report = await deployment.audit()
        assert report.clean, report.lines()
        await deployment.stop("segmenter")  # so that it waits in the midst, with everything deleted from the archive

        asked = await client.post("/v1/erasures", json={"user_id": ANN, "asked_by": "the officer"})
        assert asked.status_code == 202
        path = asked.headers["location"]
        await server.until(lambda answer: "segmenter" in str(answer.json()["progress"]), path, officer)
        server.process.kill()
        await server.start()
        held = (await client.get(path)).json()
        assert (held["state"], held["receipt"]) in (("running", None), ("waiting", None))
        again = await client.post("/v1/erasures", json={"user_id": ANN})
        assert again.headers["location"] == path

        deployment.start("segmenter")
        done = (await server.until(lambda answer: answer.json()["state"] == "done", path, officer)).json()
        async with server.client(bobs) as bob, server.client(other) as stranger:
            assert [(await one.get(path)).status_code for one in (bob, stranger)] == [404, 404]
            assert (await bob.post("/v1/erasures", json={"user_id": ANN})).status_code == 403
        assert ANN not in server.process.log.read_text()

    receipt = Receipt.model_validate(done["receipt"])
    assert (receipt.receipt_id, receipt.asked_by) == (path.rpartition("/")[2], "the officer")
    assert receipt.counts == {"messages": 6, "conversations": 2, "episodes": 2, "dead_letters": 0}
    verified = await verify(deployment.settings, receipt, ANN, "t1")
    assert not [found for found in verified if found.late]
    assert not [found for found in await documents(deployment.settings) if ANN.encode() in found]
    report = await deployment.audit()
    assert report.clean, report.lines()
