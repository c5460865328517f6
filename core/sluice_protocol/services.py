"""Where a service listens, and who may ask one that is for operators.

Whoever holds its token may, or, without one, this machine.
"""

import hmac
from typing import Final

from sluice_protocol.errors import BadUsage

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_PORT_MAX: Final = 65_535


def parse_listen(listen: str) -> tuple[str, int]:
    """Gives host and port of `HOST:PORT`; an IPv6 address stands in brackets.

    Raises:
        BadUsage: It has another form.
    """
    host, _, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > _PORT_MAX:
        raise BadUsage(f"listen must be HOST:PORT, listen=`{listen[:80]}`")
    return host, int(port)


def check_open(host: str, token: str) -> None:
    """Makes sure that a service does not tell strangers what it knows.

    Raises:
        BadUsage: It would listen beyond this machine without a token.
    """
    if not token and host not in LOOPBACK:
        raise BadUsage(f"set an api_token to listen beyond this machine, host=`{host}`")


def holds_token(authorization: str, token: str) -> bool:
    """Tells whether an `Authorization` field is `Bearer` and the token, in constant time.

    Without a token everybody may ask.
    """
    return not token or hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
