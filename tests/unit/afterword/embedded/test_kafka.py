"""Configuration of the embedded brokers."""

from pathlib import Path

from afterword.embedded.stack import new_id, render, server_properties


def test_everything_listens_on_this_machine_only() -> None:
    properties = server_properties(20001, 20002, Path("/data/logs"))
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:20001,CONTROLLER://127.0.0.1:20002"
    assert properties["advertised.listeners"] == "PLAINTEXT://127.0.0.1:20001"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:20002"


def test_topics_are_never_made_by_a_spelling_mistake() -> None:
    assert server_properties(20001, 20002, Path("/data/logs"))["auto.create.topics.enable"] == "false"


def test_one_node_replicates_nothing() -> None:
    properties = server_properties(20001, 20002, Path("/data/logs"))
    replicated = {v for k, v in properties.items() if k.endswith(("replication.factor", "min.isr", "insync.replicas"))}
    assert replicated == {1}


def test_properties_are_lines() -> None:
    assert render({"a.b": 1, "c": "x,y"}) == "a.b=1\nc=x,y\n"


def test_a_cluster_id_never_begins_with_a_dash() -> None:
    """Every 64th used to, and the storage tool read it as an option."""
    assert not any(new_id().startswith("-") for _ in range(1_000))
