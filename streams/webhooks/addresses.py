"""Decides which addresses a webhook may be sent to. This is checked for each connection, right before it is made."""

import asyncio
import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any

NOT_PUBLIC = IPv4Network("192.0.0.0/24"), IPv6Network("fec0::/10")
"""Networks that some versions of Python consider public: protocol assignments, including a cloud's metadata, and
site-local addresses."""
NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix of RFC 6052; the last four bytes are an IPv4 address."""


class AddressRefused(OSError):
    """The address is private."""


def is_public(address: str) -> bool:
    """Return whether an address is public: not private, loopback, link-local, shared, multicast or reserved.

    An IPv6 address that leads to an IPv4 address counts as the latter. Raises: ValueError if it is not an address.
    """
    parsed = ip_address(address.partition("%")[0])
    parsed = _inside(parsed) or parsed
    is_special = parsed.is_multicast or parsed.is_reserved or any(parsed in network for network in NOT_PUBLIC)
    return parsed.is_global and not is_special


def _inside(address: IPv4Address | IPv6Address) -> IPv4Address | None:
    """Return the IPv4 address to which an IPv6 address leads, if any. Teredo needs no case, because its addresses are
    not global themselves."""
    if isinstance(address, IPv4Address):
        return None
    if address in NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
    """Make a socket for one resolved address, when aiohttp asks for it. Raises: AddressRefused for a private one."""
    family, kind, protocol, _, where = info
    if not is_public(str(where[0])):
        raise AddressRefused
    return socket.socket(family, kind, protocol)


def socket_maker(host: str, allowed_hosts: frozenset[str]) -> Callable[[Any], socket.socket] | None:
    """Return the function that makes sockets for a host; None, without checks, for a host that is allowed by name."""
    return None if host.lower() in allowed_hosts else guarded_socket


async def unreachable(host: str, allowed_hosts: frozenset[str]) -> str | None:
    """Say why no connection to a host would be made; None if one would be tried."""
    try:
        resolved = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return f"{host} cannot be resolved"
    if host.lower() in allowed_hosts or any(is_public(str(where[0])) for *_, where in resolved):
        return None
    return f"{host} has a private address, and AFTERWORD_WEBHOOKS__PRIVATE_HOSTS does not name it"
