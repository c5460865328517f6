"""The identity of a request from a client that knows no sequence numbers.

Such a client sends the same records again after a lost response, perhaps to another gateway. Every
gateway therefore derives the same identity from the request alone:

    agent_id = door:<principal>:<first 2 hex digits of d>    boot_id = <first 32 hex digits of d>
    d = sha256(of each part: its length as u32 little-endian, then its bytes)
    parts = "sluice-request-1", source, principal, door, kind, value

`source` is one of three:

- `key`: the protocol or the sender names the request; `value` is the digest of the canonical
  records, then that name;
- `content`: every record has a time; `value` is that digest;
- `none`: `value` is unique, so the request is accepted as new.

The records have the sequence numbers 0 to n - 1. The agent names `door:…` are reserved for
gateways.
Source: ADR 5; pinned by golden files.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.identity import Identity, check_id
from sluice_protocol.manifests import Kind
from sluice_protocol.units import AGENT_ID_BYTES_MAX

IdentitySource = Literal["key", "content", "none"]
"""What identifies a request: a name that came with it, its records, or nothing."""

DOOR_AGENT_PREFIX: Final = "door:"
BOOT_DIGITS: Final = 32
_LANE_DIGITS: Final = 2
_FORM: Final = b"sluice-request-1"
_HEADS_MAX: Final = 1_024
_SHOWN_CHARS_MAX: Final = 80
_PRINCIPAL_BYTES_MAX: Final = AGENT_ID_BYTES_MAX - len(DOOR_AGENT_PREFIX) - 1 - _LANE_DIGITS
_REQUEST_BOOT: Final = re.compile(rf"[0-9a-f]{{{BOOT_DIGITS}}}", re.ASCII)


class RequestIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that a request's records of one kind own.

    Attributes:
        principal: The sender.
        digest: The 32 bytes `d` of the module's description.
        source: What the digest was derived from.
    """

    principal: str
    digest: bytes
    source: IdentitySource

    def batch(self, seq_start: int, count: int) -> Identity:
        """Return the identity of `count` records from `seq_start` on."""
        digits = self.digest.hex()
        return Identity(
            agent_id=f"{DOOR_AGENT_PREFIX}{self.principal}:{digits[:_LANE_DIGITS]}",
            boot_id=digits[:BOOT_DIGITS],
            seq_start=seq_start,
            seq_end=seq_start + count - 1,
        )


def request_identity(
    *, principal: str, door: str, kind: Kind, source: IdentitySource, value: bytes
) -> RequestIdentity:
    """Return the identity of a request.

    Args:
        principal: The sender, as the manifest records it.
        door: The protocol of the request; equal records through two protocols are two requests.
        kind: The kind of the records; a request may contain two kinds.
        source: What `value` is.
        value: As described above for each source.

    Raises:
        BadUsage: The name of the principal is too long for an agent id.
    """
    head = _digest_head(source, principal, door, kind)
    digest = hashlib.sha256(head + len(value).to_bytes(4, "little") + value).digest()
    return RequestIdentity(principal=principal, digest=digest, source=source)


@lru_cache(maxsize=_HEADS_MAX)
def _digest_head(source: IdentitySource, principal: str, door: str, kind: Kind) -> bytes:
    """Return the bytes in front of the value; they are equal for most requests of a sender."""
    check_door_principal(principal)
    parts = (_FORM, source.encode(), principal.encode(), door.encode(), kind.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def check_door_principal(name: str) -> None:
    """Check that a principal's name fits into the agent ids of its requests.

    Raises:
        BadUsage: It is too long.
    """
    if len(name.encode()) > _PRINCIPAL_BYTES_MAX:
        raise BadUsage(
            f"the name of a principal with doors must be at most {_PRINCIPAL_BYTES_MAX} bytes:"
            f" shorten it, name=`{name}`"
        )


def is_door_agent(agent_id: str) -> bool:
    """Return whether an agent id is reserved for gateways."""
    return agent_id.startswith(DOOR_AGENT_PREFIX)


def check_sender_id(agent_id: str) -> None:
    """Check that an agent may send under an id, before it has read anything.

    Raises:
        BadUsage: The id breaks a rule of identities, or is reserved for gateways.
    """
    try:
        check_id("agent_id", agent_id, AGENT_ID_BYTES_MAX)
    except InvalidFrame as error:
        reason = error.reason
    else:
        if not is_door_agent(agent_id):
            return
        reason = f"ids that begin with `{DOOR_AGENT_PREFIX}` are reserved for gateways"
    shown = ascii(agent_id[:_SHOWN_CHARS_MAX])[1:-1]
    raise BadUsage(f"{reason}: set another --agent-id, agent_id=`{shown}`")


def is_single_request(agent_id: str, boot_id: str) -> bool:
    """Return whether a boot belongs to one request, so that nothing can follow or be missing."""
    return is_door_agent(agent_id) and _REQUEST_BOOT.fullmatch(boot_id) is not None


def is_combined_life(agent_id: str, boot_id: str) -> bool:
    """Return whether a life is of a gateway that combines requests of several clients."""
    return is_door_agent(agent_id) and _REQUEST_BOOT.fullmatch(boot_id) is None
