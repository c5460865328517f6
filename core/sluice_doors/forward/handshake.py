"""The handshake of Fluent's forward protocol, and which sender a connection belongs to.

    server -> client   ["HELO", {"nonce": …, "auth": …, "keepalive": true}]
    client -> server   ["PING", hostname, salt, digest, username, password digest]
    server -> client   ["PONG", accepted, reason, hostname, digest]

The digests prove the knowledge of a shared key without sending it: both ends need its text. A
connection may be known without a handshake, by a client certificate or because the port requires
no proof. The sender is looked up again for each message, so that a removed key ends what its
connections may do.
Source: Fluent forward protocol specification 1, "Handshake messages".
"""

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgpack

from sluice_doors.decoded import BodyUnreadable
from sluice_doors.forward.values import NotMsgpack, build

NONCE_BYTES: Final = 16
PING_BYTES_MAX: Final = 8 * 1024
_PING_PARTS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Greeting:
    """What a server sends first, with random bytes of this connection.

    `nonce` makes the digests of the shared key different for each connection, and `auth_salt` the
    digest of a password.
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
    """Return the message `PING`."""
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


Sender_co = TypeVar("Sender_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardIdentity:
    """What a connection has proved: a key, a SPIFFE id, or `name`, the sender of the port."""

    key_id: str = ""
    spiffe: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKey:
    """A key that is valid now.

    Both ends need its text. The user has to prove the password in addition; None where none is
    required.
    """

    id: str
    shared_key: str
    username: str | None = None
    password: str = ""


class ForwardSenders(Protocol[Sender_co]):
    """Who may send."""

    def of_connection(self, certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
        """Return the identity of a connection without a handshake; None where one is required."""
        ...

    def shared_keys(self) -> Iterable[SharedKey]:
        """Return the keys that are valid now."""
        ...

    def of_identity(self, identity: ForwardIdentity) -> Sender_co:
        """Return the sender that this is now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginDecision:
    """The response to a `PING`, and who sent it; None where it is refused."""

    response: bytes
    identity: ForwardIdentity | None


def new_greeting() -> Greeting:
    """Return a greeting with new random bytes."""
    return Greeting(
        nonce=secrets.token_bytes(NONCE_BYTES), auth_salt=secrets.token_bytes(NONCE_BYTES)
    )


def decide_login(
    keys: Iterable[SharedKey], greeting: Greeting, ping: Ping, hostname: str
) -> LoginDecision:
    """Return the response to a `PING`: the first key that it proves decides."""
    for known in keys:
        if _proves(known, greeting, ping):
            response = encode_pong(greeting, ping, hostname, known.shared_key)
            return LoginDecision(response=response, identity=ForwardIdentity(key_id=known.id))
    reason = "shared key, user or password is not known"
    return LoginDecision(response=encode_refusal(reason, hostname), identity=None)


def _proves(known: SharedKey, greeting: Greeting, ping: Ping) -> bool:
    if not ping.proves_key(greeting, known.shared_key):
        return False
    return known.username is None or ping.proves_password(greeting, known.username, known.password)
