"""Records of topics and their positions, as the audit takes them in."""

from aiokafka import ConsumerRecord
from hypothesis import given
from hypothesis import strategies as st

from afterword.operating.audit.evidence import open_evidence
from afterword.operating.audit.sources import TopicReader
from afterword.schemas import EpisodeRedo
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.headers import Headers, cloud_event
from afterword.streams.kafka.log_reader import Position, Positions
from afterword.streams.settings import load_settings
from tests.samples import NOON


def record(value: bytes, headers: Headers) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("episode.closed", 0, 7, 0, 0, b"c1", value, None, 2, len(value), tuple(headers))


def test_a_request_to_redo_a_summary_is_neither_an_episode_nor_a_change_nor_unreadable() -> None:
    redo = EpisodeRedo(
        conversation_id="c1", episode_id="c1:1", revision=1, model="m", prompt_version="p", requested_at=NOON
    )
    headers = cloud_event(EPISODE_REDO, "c1:1:1:redo", "test", NOON)
    kafka = load_settings().kafka
    with open_evidence() as evidence:
        take = TopicReader(evidence, kafka).takes()[kafka.episodes_topic]
        take(record(redo.to_json(), headers))
        evidence.flush()
        rows = "SELECT (SELECT COUNT(*) FROM closed) + (SELECT COUNT(*) FROM amended) + COUNT(*) FROM invalid"
        assert evidence.value(rows) == 0
        take(record(b"{}", headers))
        evidence.flush()
        assert evidence.value("SELECT COUNT(*) FROM invalid WHERE kind = 'episode'") == 1


POSITIONS = st.sets(st.builds(Position, st.integers(0, 2), st.integers(0, 10_000) | st.integers(2**40, 2**40 + 9)))


@given(POSITIONS, POSITIONS)
def test_positions_are_those_that_were_added_in_order(added: set[Position], taken: set[Position]) -> None:
    positions = Positions()
    positions |= added
    assert list(positions) == sorted(added)
    assert len(positions) == len(added)
    assert all((one in positions) == (one in added) for one in taken)
    positions -= taken
    assert list(positions) == sorted(added - taken)
