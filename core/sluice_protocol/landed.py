"""Markers in a spool: which of its records stand in the authority. Source: ADR 0024."""

from typing import Final, Literal

import msgspec

from sluice_protocol.units import ObjectKey

LANDED: Final = "landed/v1/"
"""Prefix of the markers; it exists in a spool alone."""

LandingResult = Literal["accepted", "conflict", "copied"]


class LandedMarker(msgspec.Struct, frozen=True, kw_only=True):
    """Says that a record of the spool stands in the authority.

    Attributes:
        result: `accepted`, `conflict` (its bytes are in quarantine there), or `copied`.
        landed_at_unix_ns: When, by the landing machine's clock.
    """

    schema: Literal["sluice.landed.v1"] = "sluice.landed.v1"
    result: LandingResult
    landed_at_unix_ns: int


def marker_key(key: ObjectKey) -> ObjectKey:
    """Gives the key of the marker of a spooled record."""
    return ObjectKey(f"{LANDED}{key}")
