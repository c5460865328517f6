"""Which sender a connection of Fluent's forward protocol belongs to.

A connection may be known without a handshake, by a client certificate or because the port requires
no proof. Otherwise the client proves a shared key. The sender is looked up again for each message,
so that a removed key ends what its connections may do.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sluice_doors.forward_handshake import (
    NONCE_BYTES,
    Greeting,
    Ping,
    encode_pong,
    encode_refusal,
)

Sender_co = TypeVar("Sender_co", covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardIdentity:
    """What a connection has proved; exactly one of the three is set.

    Attributes:
        key_id: The id of a shared key.
        spiffe: The SPIFFE id of a client certificate.
        name: The sender that the port belongs to.
    """

    key_id: str = ""
    spiffe: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKey:
    """A key that is valid now.

    Attributes:
        id: What identifies it.
        shared_key: Its text, which both ends need.
        username: The user that has to prove a password in addition; None where none is required.
        password: The password of the user.
    """

    id: str
    shared_key: str
    username: str | None = None
    password: str = ""


class ForwardSenders(Protocol[Sender_co]):
    """Who may send."""

    def of_connection(self, certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
        """Return the identity of a connection without a handshake; None where one is required.

        Raises:
            Unauthenticated: The client certificate identifies no sender.
        """
        ...

    def shared_keys(self) -> Iterable[SharedKey]:
        """Return the keys that are valid now."""
        ...

    def of_identity(self, identity: ForwardIdentity) -> Sender_co:
        """Return the sender that this is now.

        Raises:
            Unauthenticated: There is no such key, id or name any more.
        """
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
