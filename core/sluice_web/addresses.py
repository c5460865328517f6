"""Addresses and host names in settings and requests: parse and compare them.

This module imports no server, so that commands can check their settings quickly.
"""

import ipaddress
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from sluice_protocol.errors import BadUsage

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

PORT_MAX: Final = 65_535
_NAME: Final = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", re.ASCII)
_EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::"})  # noqa: S104 - compared, not bound
_ADDRESSES_MAX: Final = 256
"""Parsed addresses that are remembered."""


def parse_listen(listen: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`; an IPv6 address is written in brackets."""
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > PORT_MAX:
        raise BadUsage(f"listen must be HOST:PORT, listen=`{listen[:80]}`")
    return host, int(port)


def check_distinct(addresses: Iterable[tuple[str, str]]) -> None:
    """Check that no two settings name one address.

    Two sockets of one process may share a port (SO_REUSEPORT): the kernel would send each
    connection to one of them, at random. `addresses` are pairs of a setting and its `HOST:PORT`;
    empty ones and port 0 are ignored.
    """
    known: list[tuple[str, str, str, int]] = []
    for name, listen in addresses:
        if not listen:
            continue
        host, port = parse_listen(listen)
        host = "127.0.0.1" if host == "localhost" else plain_address(host)
        for other, given, at, used in known:
            if port and used == port and (at == host or {at, host} & _EVERY_ADDRESS):
                raise BadUsage(
                    f"{other} and {name} are one address: choose another port,"
                    f" {other}=`{given}`, {name}=`{listen}`"
                )
        known.append((name, listen, host, port))


def parse_allowed_hosts(text: str) -> frozenset[str]:
    """Return the names and addresses of a setting, separated by commas and without ports."""
    return frozenset(_allowed(one.strip()) for one in text.split(",") if one.strip())


@lru_cache(maxsize=_ADDRESSES_MAX)
def plain_address(host: str) -> str:
    """Return an address in its shortest form, IPv4-mapped as IPv4; a name as it is."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


@lru_cache(maxsize=_ADDRESSES_MAX)
def is_loopback(address: str) -> bool:
    """Return True for a loopback address, False for any other address or name."""
    return is_address(address) and ipaddress.ip_address(address).is_loopback


def is_address(host: str) -> bool:
    """Return True for an IPv4 or IPv6 address without brackets, False for any other text."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _allowed(name: str) -> str:
    host = plain_address(name.lower().strip("[]"))
    if not _NAME.fullmatch(host) and not is_address(host):
        raise BadUsage(
            f"allowed_hosts must be names or addresses without ports, found=`{name[:80]}`"
        )
    return host
