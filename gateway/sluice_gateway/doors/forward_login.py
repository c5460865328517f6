"""Which principal a connection of Fluent's forward protocol belongs to.

A client certificate with a SPIFFE id identifies it without a handshake. Otherwise the client proves
a shared key of the principals file, or the port belongs to one principal and requires no proof. The
result is looked up again for each message, so that a removed key ends what its connections may do.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from sluice_doors.forward_handshake import (
    NONCE_BYTES,
    Greeting,
    Ping,
    encode_pong,
    encode_refusal,
)
from sluice_gateway.authentication import spiffe_id
from sluice_gateway.principals import KnownForwardKey, Principals, VerifiedSender
from sluice_protocol.errors import Unauthenticated


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardIdentity:
    """What a connection has proved; exactly one of the three is set.

    Attributes:
        key_id: The id of a shared key.
        spiffe: The SPIFFE id of a client certificate.
        name: The principal that the port belongs to.
    """

    key_id: str = ""
    spiffe: str = ""
    name: str = ""

    def sender(self, principals: Principals, now_s: int) -> VerifiedSender:
        """Return the sender that this is now.

        Raises:
            Unauthenticated: The principals file has no such key, id or name any more.
        """
        if self.spiffe:
            return principals.spiffe_sender(self.spiffe)
        if self.name:
            found = principals.names.get(self.name)
            if found is None:
                raise Unauthenticated("the principal of forward_principal is not known")
            return found
        known = principals.forward.get(self.key_id)
        if known is None or _expired(known, now_s):
            raise Unauthenticated("no principal has this shared key any more")
        return known.sender


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


def certificate_identity(certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
    """Return the identity of a verified client certificate; None where there is none.

    Raises:
        Unauthenticated: It has not exactly one SPIFFE id.
    """
    return ForwardIdentity(spiffe=spiffe_id(certificate)) if certificate else None


def decide_login(
    principals: Principals, greeting: Greeting, ping: Ping, hostname: str, now_s: int
) -> LoginDecision:
    """Return the response to a `PING`: the first key that it proves decides."""
    for key_id, known in principals.forward.items():
        if not _expired(known, now_s) and _proves(known, greeting, ping):
            response = encode_pong(greeting, ping, hostname, known.shared_key)
            return LoginDecision(response=response, identity=ForwardIdentity(key_id=key_id))
    reason = "shared key, user or password is not known"
    return LoginDecision(response=encode_refusal(reason, hostname), identity=None)


def _proves(known: KnownForwardKey, greeting: Greeting, ping: Ping) -> bool:
    if not ping.proves_key(greeting, known.shared_key):
        return False
    return known.username is None or ping.proves_password(greeting, known.username, known.password)


def _expired(known: KnownForwardKey, now_s: int) -> bool:
    return known.not_after_s is not None and now_s > known.not_after_s
