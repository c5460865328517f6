"""The HTTP upload of a frame: its path, media type and header fields.

Field names are in lower case, the form in which signatures cover them (RFC 9421); HTTP compares
field names without case.
"""

from typing import Final

from sluice_protocol.units import SEQ_END

UPLOAD_PATH: Final = "/v1/batches"
FRAME_MEDIA_TYPE: Final = "application/vnd.lightmetrics.batch"
UPLOAD_LIST_PATH: Final = "/v1/batches:many"
FRAME_LIST_MEDIA_TYPE: Final = "application/vnd.lightmetrics.batches"
RETRY_HEADER: Final = "sluice-retry"
"""`1` when the sender has sent these bytes before: the gateway reads before it writes."""
HIGH_WATER_HEADER: Final = "sluice-high-water"
"""The highest sequence number that the sender has assigned in this boot."""
SLUICE_HEADERS: Final = (RETRY_HEADER, HIGH_WATER_HEADER)
"""Every field of sluice in a request; a signature covers each one that is present."""
SHED_HEADER: Final = "Sluice-Shed"
"""`1` in a response when the sender should upload its next batches to another gateway."""
_DIGITS_MAX: Final = 19


def parse_high_water(text: str | None) -> int | None:
    """Return the number in a `Sluice-High-Water` field; None if absent or malformed."""
    if text is None or len(text) > _DIGITS_MAX or not (text.isascii() and text.isdecimal()):
        return None
    number = int(text)
    return number if number < SEQ_END else None
