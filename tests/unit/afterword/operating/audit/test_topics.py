"""The audit reads topics' records and positions."""

from aiokafka import ConsumerRecord

from afterword.operating.evidence import TopicReader, open_evidence
from afterword.schemas import EpisodeRedo
from afterword.schemas.dead_letters import ARCHIVE, dead_letter
from afterword.schemas.episodes import EPISODE_REDO
from afterword.schemas.records import Headers, cloud_event
from afterword.streams.settings import load_settings
from tests.samples import NOON


def record(value: bytes, headers: Headers) -> ConsumerRecord[bytes, bytes]:
    return ConsumerRecord("episode.closed", 0, 7, 0, 0, b"c1", value, None, 2, len(value), tuple(headers))


def test_redo_request_is_neither_episode_nor_change() -> None:
    redo = EpisodeRedo(conversation_id="c1", episode_id="c1:1", revision=1, requested_at=NOON)
    headers = cloud_event(EPISODE_REDO, "c1:1:1:redo", "test", NOON)
    kafka = load_settings().kafka
    with open_evidence() as evidence:
        take = TopicReader(evidence, kafka).takes()[kafka.episodes_topic]
        take(record(redo.to_json(), headers))
        rows = "SELECT (SELECT COUNT(*) FROM closed) + (SELECT COUNT(*) FROM amended) + COUNT(*) FROM invalid"
        assert evidence.value(rows) == 0
        take(record(b"{}", headers))
        assert evidence.value("SELECT COUNT(*) FROM invalid WHERE kind = 'episode'") == 1


def test_message_only_the_archiver_rejected_belongs_to_its_episode() -> None:
    kafka = load_settings().kafka
    original = ConsumerRecord("messages", 2, 0, 1, 0, b"c", b"{}", None, 1, 2, ())
    with open_evidence() as evidence:
        take = TopicReader(evidence, kafka).takes()[kafka.dead_letters(kafka.messages_topic)]
        for stage in ("segmenter", ARCHIVE):
            _, value, headers = dead_letter(original, stage=stage, error_type="unforeseen", message="", now_ms=1)
            take(record(value or b"", headers))
        assert list(evidence.rows("SELECT * FROM dead_letter")) == [("message", 2, 0, False)]
