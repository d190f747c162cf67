"""A server keeps its port, unless somebody else took it."""

import socket
from pathlib import Path

from afterword.embedded.ports import HOST, free_ports, is_free, remembered_ports

LOWEST_EPHEMERAL = 32_768


def test_the_next_start_finds_the_same_ports(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "ports.json"
    assert remembered_ports(file, 3) == remembered_ports(file, 3)


def test_a_port_that_was_taken_since_is_replaced(tmp_path: Path) -> None:
    before = remembered_ports(tmp_path / "ports.json", 2)
    with socket.create_server((HOST, before[0])):
        after = remembered_ports(tmp_path / "ports.json", 2)
    assert before[0] not in after
    assert remembered_ports(tmp_path / "ports.json", 2) == after


def test_ports_differ_and_no_outgoing_connection_is_ever_given_them() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert max(ports) < LOWEST_EPHEMERAL


def test_a_port_is_free_again_while_its_old_connections_linger() -> None:
    server = socket.create_server((HOST, 0))
    port = server.getsockname()[1]
    client = socket.create_connection((HOST, port))
    accepted, _ = server.accept()
    assert not is_free(port)
    accepted.close()  # the server's side closes first, and keeps the connection in TIME_WAIT
    client.close()
    server.close()
    assert is_free(port)
