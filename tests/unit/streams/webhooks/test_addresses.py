"""Which addresses a webhook may go to."""

import socket

import pytest

from afterword.streams.webhooks.endpoint import AddressRefused, guarded_socket, is_public, socket_maker, unreachable

PUBLIC = ("8.8.8.8", "2606:4700::1111", "64:ff9b::808:808", "::ffff:8.8.8.8", "2002:808:808::")
PRIVATE = (
    *("127.0.0.1", "127.8.8.8", "10.1.1.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *("224.0.0.1", "240.0.0.1", "255.255.255.255", "192.0.2.1", "::", "::1", "fe80::1", "fe80::1%eth0", "fd00::1"),
    *("ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
    *("2001:0:4136:e378:8000:63bf:3fff:fdd2", "64:ff9b:1::1", "192.0.0.192", "fec0::1", "fec0:0:0:ffff::1"),
)


def test_only_internet_addresses_are_public() -> None:
    assert [address for address in PUBLIC + PRIVATE if is_public(address)] == [*PUBLIC]


def test_socket_is_made_for_the_connected_address() -> None:
    guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("8.8.8.8", 443))).close()
    with pytest.raises(AddressRefused):
        guarded_socket((socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 443)))


def test_allowed_hosts_are_not_checked() -> None:
    allowed = frozenset({"hooks.internal"})
    assert socket_maker("Hooks.Internal", allowed) is None
    assert socket_maker("other.internal", allowed) is guarded_socket


async def test_host_that_would_not_be_connected_is_named() -> None:
    assert await unreachable("127.0.0.1", frozenset({"127.0.0.1"})) is None
    assert await unreachable("8.8.8.8", frozenset()) is None
    assert "private address" in str(await unreachable("127.0.0.1", frozenset()))
    assert await unreachable("name.invalid", frozenset()) == "name.invalid cannot be resolved"
