"""The receiver in docs/how-to/webhooks.md, run as it is printed there: Node's library verifies what is posted."""

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from afterword.embedded.claims import free_ports
from afterword.schemas.summaries import SummaryCreated
from afterword.streams.settings import WebhookEndpoint, Webhooks
from afterword.streams.webhooks.endpoint import DeliveryFailed, Endpoint, webhook_body, webhook_id
from tests.deploy.builds import needs
from tests.doubles.receiver import SECRET
from tests.samples import a_summary

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(300)]

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "webhooks.md"
LIBRARY = "standardwebhooks@1.1.1"
OTHER = "whsec_" + "b3RoZXJvdGhlcm90aGVyb3RoZXJvdGhlcm90"
CONVERSATION = "Gespräch 1/\u202e%2F"


def receiver_program() -> str:
    found = re.search(r"^```javascript\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def install(directory: Path) -> None:
    (directory / "package.json").write_text(json.dumps({"type": "module"}))
    command = [needs("npm"), "install", "--silent", "--no-audit", "--no-fund", LIBRARY]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install {LIBRARY}: {done.stderr.strip()[:200]}")


async def post(url: str, secret: str, event: SummaryCreated) -> None:
    endpoints = {"node": WebhookEndpoint(url=url, secret=secret)}
    webhooks = Webhooks(endpoints=endpoints, private_hosts="127.0.0.1")
    async with Endpoint("node", endpoints["node"], webhooks) as endpoint, endpoint.turn():
        await endpoint.post(webhook_id(event.event_id), webhook_body(event))


async def until_it_listens(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
            else:
                writer.close()
                return


async def test_node_receiver_verifies_signatures_and_refuses_another_secret(tmp_path: Path) -> None:
    install(tmp_path)
    (tmp_path / "receiver.js").write_text(receiver_program())
    [port] = free_ports(1)
    environment = os.environ | {"WEBHOOK_SECRET": SECRET, "PORT": str(port)}
    process = await asyncio.create_subprocess_exec(
        needs("node"), "receiver.js", cwd=tmp_path, env=environment, stdout=asyncio.subprocess.PIPE
    )
    try:
        await until_it_listens(port)
        event = a_summary(1, CONVERSATION)
        await post(f"http://127.0.0.1:{port}/", SECRET, event)
        await post(f"http://127.0.0.1:{port}/", f"{OTHER},{SECRET}", event)  # while the secret is changed
        with pytest.raises(DeliveryFailed, match="it answers 400"):
            await post(f"http://127.0.0.1:{port}/", OTHER, event)
        assert process.stdout is not None
        for _ in range(2):
            line = await asyncio.wait_for(process.stdout.readline(), 10)
            assert line.decode().strip() == f"summary.created {event.event_id}"
    finally:
        process.terminate()
        await process.wait()
