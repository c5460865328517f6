"""What is known about the time at which the frame of a batch was sealed.

No record contains that time. The frame cannot contain it: an agent sends the same bytes again after
hours, every gateway makes the same bytes of one request of a door, and readers refuse unknown
fields (ADR 43). So the time is bounded by what the manifest contains, each with its clock.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ulid import ULID

from sluice_protocol.identity import is_door_agent, is_single_request
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S

_NS_PER_MS: Final = NS_PER_S // 1000
_CLOCKS_DIFFER_NS: Final = 86_400 * NS_PER_S
"""How far a clock may be ahead of the store's; a later time in a boot is another kind of text."""


class Sealer(StrEnum):
    """What closed the batch."""

    SENDER = "sender"
    """An agent, or another client that makes frames."""
    DOOR_REQUEST = "door_request"
    """The gateway, of one request of a door."""
    DOOR_COMBINED = "door_combined"
    """The gateway, of several small requests of a door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SealBounds:
    """The time at which a frame was sealed, as far as it is known.

    Attributes:
        after_unix_ns: When the boot of the sender began, by the clock of the sealer: the seal is
            later. None if the boot does not contain a time.
        before_unix_ns: When the gateway had the complete frame, by the gateway's clock: the seal is
            earlier. For a door it is the seal, up to the milliseconds of the hash. None if the
            attempt does not contain a time, or one long after the acceptance.
        accepted_before_unix_ns: When it was accepted, by the store's clock: the seal is earlier.
        gateway: The gateway whose clock `before_unix_ns` is of.
    """

    sealer: Sealer
    after_unix_ns: int | None
    before_unix_ns: int | None
    accepted_before_unix_ns: int
    gateway: str
    meaning: str


def seal_bounds(manifest: AcceptedManifest) -> SealBounds:
    """Return what a manifest states about the seal of its frame."""
    sealer = _sealer(manifest)
    latest_ns = manifest.accepted_at_unix_ns + _CLOCKS_DIFFER_NS

    def possible(text: str) -> int | None:
        at_ns = ulid_time_ns(text)
        return at_ns if at_ns is not None and at_ns <= latest_ns else None

    return SealBounds(
        sealer=sealer,
        after_unix_ns=None if sealer is Sealer.DOOR_REQUEST else possible(manifest.boot_id),
        before_unix_ns=possible(manifest.attempt_id),
        accepted_before_unix_ns=manifest.accepted_at_unix_ns,
        gateway=manifest.collector_id,
        meaning=_MEANINGS[sealer],
    )


def ulid_time_ns(text: str) -> int | None:
    """Return the time in a ULID, Unix ns; None if the text is none."""
    try:
        return ULID.from_str(text).milliseconds * _NS_PER_MS
    except ValueError:
        return None


def _sealer(manifest: AcceptedManifest) -> Sealer:
    if is_single_request(manifest.agent_id, manifest.boot_id):
        return Sealer.DOOR_REQUEST
    return Sealer.DOOR_COMBINED if is_door_agent(manifest.agent_id) else Sealer.SENDER


_MEANINGS: Final = {
    Sealer.SENDER: (
        "The time of the seal is not recorded: the frame must have the same bytes when it is sent"
        " again. The sender sealed it before it sent it."
    ),
    Sealer.DOOR_REQUEST: (
        "The gateway made the frame of one request of a door. The frame does not contain the time,"
        " so that every gateway makes the same bytes of this request."
    ),
    Sealer.DOOR_COMBINED: (
        "The gateway combined small requests of a door into this frame, which does not contain the"
        " time."
    ),
}
