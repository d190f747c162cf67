"""Changes of messages, as the audit looks them up."""

from afterword.audit.changes import Lasting
from afterword.audit.snapshot import ProducedMessage, Snapshot
from afterword.streams.log_reader import Position


def test_looking_up_messages_without_changes_takes_no_memory() -> None:
    lasting = Lasting(Snapshot())
    for number in range(100):
        assert lasting.changes(ProducedMessage(Position(0, number), f"c{number}", b"%d" % number, b"")) == []
    assert not lasting._of_message
    assert not lasting._of_conversation
