"""The identity of a batch: its agent, the boot of that agent, and the sequence numbers.

A client that knows no sequence numbers sends the same records again after a lost response, perhaps
to another gateway. Every gateway therefore derives the same identity from the request alone:

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
from typing import Final, Literal, Protocol, Self

import msgspec

from sluice_protocol.errors import BadUsage, InvalidFrame
from sluice_protocol.units import AGENT_ID_BYTES_MAX, BOOT_ID_BYTES_MAX, SEQ_END

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class IdentityFields(Protocol):
    """The four fields in which records state an identity."""

    @property
    def agent_id(self) -> str:
        """The agent."""
        ...

    @property
    def boot_id(self) -> str:
        """The boot of the agent."""
        ...

    @property
    def seq_start(self) -> int:
        """The first sequence number."""
        ...

    @property
    def seq_end(self) -> int:
        """The last sequence number, inclusive."""
        ...


def format_identity(stated: IdentityFields) -> str:
    """Return an identity in the form that `sluice explain` reads."""
    return f"{stated.agent_id}/{stated.boot_id}/{stated.seq_start}-{stated.seq_end}"


class Identity(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """The permanent name of a batch: agent, boot, first and last sequence number, both inclusive.

    Raises:
        InvalidFrame: An id is empty, too long or contains a control character, or the range is not
            `0 <= seq_start <= seq_end < 2**63`.
    """

    agent_id: str
    boot_id: str
    seq_start: int
    seq_end: int

    def __post_init__(self) -> None:
        check_id("agent_id", self.agent_id, AGENT_ID_BYTES_MAX)
        check_id("boot_id", self.boot_id, BOOT_ID_BYTES_MAX)
        if not 0 <= self.seq_start <= self.seq_end < SEQ_END:
            raise InvalidFrame("seq_start", "sequence range is not 0 <= start <= end < 2**63")

    @classmethod
    def of(cls, stated: IdentityFields) -> Self:
        """Return the identity that a record states in these four fields."""
        return cls(
            agent_id=stated.agent_id,
            boot_id=stated.boot_id,
            seq_start=stated.seq_start,
            seq_end=stated.seq_end,
        )

    @property
    def count(self) -> int:
        """The number of records in the range."""
        return self.seq_end - self.seq_start + 1


@lru_cache(maxsize=4096)  # the ids of many batches repeat
def check_id(field: str, text: str, limit_bytes: int) -> None:
    """Reject an id that is empty, too long in UTF-8, or contains control characters."""
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidFrame(field, "id is not valid UTF-8") from error
    if not 1 <= size_bytes <= limit_bytes:
        raise InvalidFrame(field, f"id must be 1 to {limit_bytes} bytes of UTF-8")
    if _CONTROL.search(text) is not None:
        raise InvalidFrame(field, "id contains a control character")


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

    `digest` is the 32 bytes `d` of the module's description.
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
    *, principal: str, door: str, kind: str, source: IdentitySource, value: bytes
) -> RequestIdentity:
    """Return the identity of a request.

    `principal` is that of the manifest. Equal records through two protocols, or of two kinds, are
    two requests. `value` is described above for each source.
    """
    head = _digest_head(source, principal, door, kind)
    digest = hashlib.sha256(head + len(value).to_bytes(4, "little") + value).digest()
    return RequestIdentity(principal=principal, digest=digest, source=source)


@lru_cache(maxsize=_HEADS_MAX)
def _digest_head(source: IdentitySource, principal: str, door: str, kind: str) -> bytes:
    """Return the bytes in front of the value; they are equal for most requests of a sender."""
    check_door_principal(principal)
    parts = (_FORM, source.encode(), principal.encode(), door.encode(), kind.encode())
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def check_door_principal(name: str) -> None:
    """Check that a principal's name fits into the agent ids of its requests."""
    if len(name.encode()) > _PRINCIPAL_BYTES_MAX:
        raise BadUsage(
            f"the name of a principal with doors must be at most {_PRINCIPAL_BYTES_MAX} bytes:"
            f" shorten it, name=`{name}`"
        )


def is_door_agent(agent_id: str) -> bool:
    """Return whether an agent id is reserved for gateways."""
    return agent_id.startswith(DOOR_AGENT_PREFIX)


def check_sender_id(agent_id: str) -> None:
    """Check an agent's id, which may not be reserved for gateways, before anything is read."""
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
    """Return whether a boot is that of a gateway which combines requests of several clients."""
    return is_door_agent(agent_id) and _REQUEST_BOOT.fullmatch(boot_id) is None
