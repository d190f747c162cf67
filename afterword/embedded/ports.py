"""Ports of servers that come back on the same address."""

import json
import random
import socket
from pathlib import Path

HOST = "127.0.0.1"
LOWEST, HIGHEST = 20_000, 32_000
"""Below the range that Linux (32768 and up) and macOS (49152 and up) take for outgoing connections: otherwise a client
that calls a server which is down for a moment may be given that server's port."""


def remembered_ports(file: Path, count: int) -> list[int]:
    """The ports of the last start, as JSON in `file`; chosen anew when one of them has been taken since."""
    if file.exists():
        ports = [int(port) for port in json.loads(file.read_text())]
        if len(ports) == count and all(map(is_free, ports)):
            return ports
    ports = free_ports(count)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ports))
    return ports


def free_ports(count: int) -> list[int]:
    candidates = random.sample(range(LOWEST, HIGHEST), HIGHEST - LOWEST)
    free = filter(is_free, candidates)
    return [next(free) for _ in range(count)]


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        # as servers do: connections that linger in TIME_WAIT do not hold a port
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True
