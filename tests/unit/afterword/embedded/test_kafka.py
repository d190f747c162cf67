"""Configuration of the embedded brokers."""

from pathlib import Path

from afterword.embedded.stack import new_id, server_properties


def test_everything_listens_on_this_machine_only() -> None:
    properties = server_properties(20001, 20002, Path("/data/logs"))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"


def test_a_cluster_id_never_begins_with_a_dash() -> None:
    """Every 64th used to, and the storage tool read it as an option."""
    assert not any(new_id().startswith("-") for _ in range(1_000))
