"""The identity of a batch: its agent, the boot of that agent, and the sequence numbers."""

import re
from functools import lru_cache
from typing import Final, Protocol, Self

import msgspec

from sluice_protocol.errors import InvalidFrame
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
    """Reject an id that is empty, too long in UTF-8, or contains control characters.

    Raises:
        InvalidFrame: The id breaks a rule; the error names `field`.
    """
    try:
        size_bytes = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidFrame(field, "id is not valid UTF-8") from error
    if not 1 <= size_bytes <= limit_bytes:
        raise InvalidFrame(field, f"id must be 1 to {limit_bytes} bytes of UTF-8")
    if _CONTROL.search(text) is not None:
        raise InvalidFrame(field, "id contains a control character")
