"""Messages in, summaries out: the real processes, from `messages` to `summary.created`."""

import pytest

from afterword.dev import ROLES
from afterword.smoke import NoSummary, smoke
from tests.e2e.deployment import Deployment, expected_fingerprints, fingerprints

WAIT_SECONDS = 90


async def test_every_message_ends_in_one_stored_and_announced_episode(
    deployment: Deployment, dialogues: list[bytes]
) -> None:
    for role in ROLES:
        deployment.start(role)
    produced = await deployment.produce(dialogues)
    report = await deployment.audit(WAIT_SECONDS)
    assert report.clean, report.lines()
    assert report.messages["in_an_episode"] == report.messages["archived"] == produced.messages
    assert report.messages["pending"] == report.messages["lost"] == 0
    assert report.episodes["total"] == report.summaries["stored"] == report.summaries["indexed"]
    assert report.summaries["announced"] == report.episodes["total"]
    closed = await deployment.episodes()
    assert fingerprints(closed) == expected_fingerprints(dialogues, deployment.settings)
    assert {name: await deployment.stop(name) for name in ROLES} == dict.fromkeys(ROLES, 0)


async def test_a_smoke_test_passes_with_all_workers_and_fails_without_one(deployment: Deployment) -> None:
    for role in ("segmenter", "summarizer"):
        deployment.start(role)
    event = await smoke(deployment.settings, WAIT_SECONDS)
    assert event.message_count == 3
    assert await deployment.stop("summarizer") == 0
    with pytest.raises(NoSummary, match=r"afterword-smoke-\S+ has no summary"):
        await smoke(deployment.settings, 2)
