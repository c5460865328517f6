"""The high-water mark of one (agent, boot): what the agent says it has made, beyond what came.

A hint and no evidence: it is written best effort, and nothing but the view of what is missing
rests on it. Source: ADR 0046.
"""

from typing import Final, Literal

import msgspec

from sluice_protocol.units import SEQ_END

_DIGITS_MAX: Final = 19


class HighWaterMark(msgspec.Struct, frozen=True, kw_only=True):
    """The highest sequence number that an agent told with an accepted upload."""

    schema: Literal["sluice.high_water.v1"] = "sluice.high_water.v1"
    agent_id: str
    boot_id: str
    seq_end: int


def parse_high_water(text: str | None) -> int | None:
    """Gives the number of a `Sluice-High-Water` header, None for none or another form."""
    if text is None or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number < SEQ_END else None
