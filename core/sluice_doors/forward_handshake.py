"""The handshake of Fluent's forward protocol: three messages, and the digests in them.

    server -> client   ["HELO", {"nonce": …, "auth": …, "keepalive": true}]
    client -> server   ["PING", hostname, salt, digest, username, password digest]
    server -> client   ["PONG", accepted, reason, hostname, digest]

The digests prove the knowledge of a shared key without sending it: both ends need its text.
Source: Fluent forward protocol specification 1, "Handshake messages".
"""

import hashlib
import hmac
from dataclasses import dataclass
from typing import Final

import msgpack

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.msgpack_values import NotMsgpack, build

NONCE_BYTES: Final = 16
PING_BYTES_MAX: Final = 8 * 1024
_PING_PARTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a server sends first, with random bytes of this connection.

    Attributes:
        nonce: Makes the digests of the shared key different for each connection.
        auth_salt: The same for the digest of a password.
    """

    nonce: bytes
    auth_salt: bytes

    def encode(self) -> bytes:
        """Return the message `HELO`."""
        option = {"nonce": self.nonce, "auth": self.auth_salt, "keepalive": True}
        return bytes(msgpack.packb(["HELO", option]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """What a client sends to prove that it knows a shared key."""

    hostname: bytes
    salt: bytes
    key_digest: bytes
    username: bytes
    password_digest: bytes

    def proves_key(self, greeting: Greeting, shared_key: str) -> bool:
        """Return whether the client knows a shared key."""
        expected = _digest(self.salt, self.hostname, greeting.nonce, shared_key.encode())
        return hmac.compare_digest(expected, self.key_digest)

    def proves_password(self, greeting: Greeting, username: str, password: str) -> bool:
        """Return whether the client is this user and knows its password."""
        expected = _digest(greeting.auth_salt, username.encode(), password.encode())
        same_user = hmac.compare_digest(username.encode(), self.username)
        return hmac.compare_digest(expected, self.password_digest) and same_user


def read_ping(data: bytes) -> Ping:
    """Return the message `PING`.

    Raises:
        BodyUnreadable: It is another message.
    """
    try:
        found = build(data)
    except NotMsgpack as error:
        raise BodyUnreadable(f"cannot read PING: {error}") from error
    if not isinstance(found, list) or len(found) != _PING_PARTS or _bytes(found[0]) != b"PING":
        raise BodyUnreadable("the client sent no PING: it needs a shared key")
    parts = [_bytes(one) for one in found[1:]]
    return Ping(
        hostname=parts[0],
        salt=parts[1],
        key_digest=parts[2],
        username=parts[3],
        password_digest=parts[4],
    )


def encode_pong(greeting: Greeting, ping: Ping, hostname: str, shared_key: str) -> bytes:
    """Return the message `PONG` of a server that knows the same shared key."""
    digest = _digest(ping.salt, hostname.encode(), greeting.nonce, shared_key.encode())
    return bytes(msgpack.packb(["PONG", True, "", hostname, digest.decode()]))


def encode_refusal(reason: str, hostname: str) -> bytes:
    """Return the message `PONG` to a client that is not accepted."""
    return bytes(msgpack.packb(["PONG", False, reason, hostname, ""]))


def encode_ack(chunk: str | bytes) -> bytes:
    """Return the response to a message that is accepted permanently."""
    option = {"ack": chunk}
    return bytes(msgpack.packb(option, unicode_errors="surrogateescape"))


def _digest(*parts: bytes) -> bytes:
    found = hashlib.sha512()
    for part in parts:
        found.update(part)
    return found.hexdigest().encode()


def _bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return value if isinstance(value, bytes) else b""
