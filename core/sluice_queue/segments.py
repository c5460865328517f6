"""Segments: immutable objects with the older entries of a lane whose register is full.

`docs/queue.md` has the table of its bytes. Pure: no I/O, clock or randomness.

Source: ADR 23.
"""

import struct
from dataclasses import dataclass, replace
from typing import Final

from sluice_protocol.errors import InvariantViolated
from sluice_queue.entries import Descriptor, decode_entries, skip_entries
from sluice_queue.errors import LaneDamaged
from sluice_queue.register import Register, SegmentRef, check_head

SEGMENT_MAGIC: Final = b"LMQS"
SEGMENT_VERSION: Final = 1
_HEADER: Final = struct.Struct("<4sHHQQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spill:
    """The older half of a full register, to be moved into a segment.

    The same state results in the same bytes. `after` still has the old revision and nonce, because
    it is never written alone: the append that follows is the same swap.
    """

    ref: SegmentRef
    body: bytes
    after: Register


def spill(key: str, state: Register) -> Spill:
    """Move the older half of the entries out of the register.

    Raises:
        InvariantViolated: The register has fewer than two entries.
    """
    half = state.count // 2
    if half == 0:
        raise InvariantViolated("register has too few entries to move to a segment")
    cut = skip_entries(key, state.entries, 0, half)
    first, last = state.first_held, state.first_held + half - 1
    body = _HEADER.pack(SEGMENT_MAGIC, SEGMENT_VERSION, 0, first, last) + state.entries[:cut]
    ref = SegmentRef(first=first, last=last, size_bytes=len(body))
    after = replace(
        state,
        count=state.count - half,
        segments=(*state.segments, ref),
        entries=state.entries[cut:],
    )
    return Spill(ref=ref, body=body, after=after)


def decode_segment(key: str, body: bytes) -> tuple[Descriptor, ...]:
    """Decode a segment and all of its entries."""
    what, size = "queue segment", _HEADER.size
    check_head(key, body, what=what, magic=SEGMENT_MAGIC, version=SEGMENT_VERSION, size=size)
    _, _, reserved, first, last = _HEADER.unpack_from(body)
    if reserved:
        raise LaneDamaged(key, "reserved bytes of the queue segment are not 0")
    found = decode_entries(key, memoryview(body)[_HEADER.size :], first)
    if not found or found[-1].sequence != last:
        raise LaneDamaged(key, "queue segment does not end at its last sequence")
    return found
