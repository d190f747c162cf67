"""Configuration of the embedded brokers."""

from pathlib import Path

from afterword.embedded.java import Jar, JarCache
from afterword.embedded.stack import Broker, new_id


def test_every_listener_is_local(tmp_path: Path) -> None:
    broker = Broker(JarCache(tmp_path, []), tmp_path)
    plain, controller = (f"127.0.0.1:{port}" for port in broker.ports)
    properties = broker.properties()
    assert properties["listeners"] == f"PLAINTEXT://{plain},CONTROLLER://{controller}"
    assert properties["advertised.listeners"] == f"PLAINTEXT://{plain}"
    assert properties["controller.quorum.voters"] == f"1@{controller}"


def test_cluster_id_never_begins_with_a_dash() -> None:
    """Every 64th used to, and the storage tool read it as an option."""
    assert not any(new_id().startswith("-") for _ in range(1_000))


def test_first_broker_records_its_classes_for_later_ones(tmp_path: Path) -> None:
    jars = JarCache(tmp_path, [Jar("org.example", "one", "1.0", 1, "", "kafka")])
    plain, recording = (Broker(jars, tmp_path, record=record) for record in (False, True))
    command = plain.start_command()
    [flag] = set(recording.start_command()) - set(command)
    recording.keep_recording()  # it was killed before it wrote anything
    assert plain.start_command() == command
    Path(flag.split("=")[1]).write_bytes(b"classes")
    recording.keep_recording()
    for broker in (plain, recording):
        [flag] = set(broker.start_command()) - set(command)
        assert Path(flag.split("=")[1]).read_bytes() == b"classes"
