"""Who sent a message to a door on a separate port, by the principals file as it is now."""

from collections.abc import Iterator, Mapping

from sluice_doors.forward.handshake import ForwardIdentity, SharedKey
from sluice_gateway.uploads.principals import (
    KnownForwardKey,
    Principals,
    PrincipalsFile,
    VerifiedSender,
    spiffe_id,
)
from sluice_protocol.clock import Clock
from sluice_protocol.errors import Unauthenticated
from sluice_protocol.units import NS_PER_S


class DoorSenders:
    """The principals of gRPC calls (`CallSenders`) and of connections (`ForwardSenders`)."""

    def __init__(
        self, principals: PrincipalsFile, clock: Clock, *, forward_principal: str = ""
    ) -> None:
        """Bind the principals; with `forward_principal` the forward port has no handshake."""
        self._principals = principals
        self._clock = clock
        self._forward_principal = forward_principal

    def of_call(self, token: str | None, spiffe: str | None) -> VerifiedSender:
        """Return the owner of the token, or of the client certificate if there is no token."""
        if token is not None:
            return self._current.token_sender(token, self._now_s())
        if spiffe is None:
            raise Unauthenticated(
                "neither a token nor a client certificate with one SPIFFE URI SAN"
            )
        return self._current.spiffe_sender(spiffe)

    def of_connection(self, certificate: Mapping[str, object] | None) -> ForwardIdentity | None:
        """Return the identity of the client certificate, or of the port; None without either."""
        if certificate:
            return ForwardIdentity(spiffe=spiffe_id(certificate))
        return ForwardIdentity(name=self._forward_principal) if self._forward_principal else None

    def shared_keys(self) -> Iterator[SharedKey]:
        """Yield the keys that have not expired."""
        for key_id, known in self._current.forward.items():
            if not self._is_expired(known):
                yield SharedKey(
                    id=key_id,
                    shared_key=known.shared_key,
                    username=known.username,
                    password=known.password,
                )

    def of_identity(self, identity: ForwardIdentity) -> VerifiedSender:
        """Return the principal that this is now."""
        if identity.spiffe:
            return self._current.spiffe_sender(identity.spiffe)
        if identity.name:
            found = self._current.names.get(identity.name)
            if found is None:
                raise Unauthenticated("the principal of forward_principal is not known")
            return found
        known = self._current.forward.get(identity.key_id)
        if known is None or self._is_expired(known):
            raise Unauthenticated("no principal has this shared key any more")
        return known.sender

    @property
    def _current(self) -> Principals:
        return self._principals.current

    def _now_s(self) -> int:
        return self._clock.now_ns() // NS_PER_S

    def _is_expired(self, known: KnownForwardKey) -> bool:
        return known.not_after_s is not None and self._now_s() > known.not_after_s
