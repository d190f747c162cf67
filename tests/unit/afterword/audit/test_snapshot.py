"""Records of topics, as the audit takes them in."""

from aiokafka import ConsumerRecord

from afterword.audit.snapshot import Snapshot, take_episode
from afterword.schemas import EpisodeRedo
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.headers import Headers, cloud_event
from tests.samples import NOON


def record(value: bytes, headers: Headers) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("episode.closed", 0, 7, 0, 0, b"c1", value, None, 2, len(value), tuple(headers))


def test_a_request_to_redo_a_summary_is_neither_an_episode_nor_a_change_nor_unreadable() -> None:
    redo = EpisodeRedo(
        conversation_id="c1", episode_id="c1:1", revision=1, model="m", prompt_version="p", requested_at=NOON
    )
    snapshot = Snapshot()
    take_episode(snapshot, record(redo.to_json(), cloud_event(EPISODE_REDO, "c1:1:1:redo", "test", NOON)))
    assert (snapshot.closed, snapshot.amended, snapshot.unreadable) == ([], [], set())
    take_episode(snapshot, record(b"{}", cloud_event(EPISODE_REDO, "c1:1:1:redo", "test", NOON)))
    assert len(snapshot.unreadable) == 1
