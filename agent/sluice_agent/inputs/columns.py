"""Build columns from log text.

A record's body is the line's exact bytes without its line end, which is LF or CR LF. Bytes that
are not UTF-8 become U+FFFD, and the original bytes of the line are added in base64 as the
attribute `sluice.raw`, so that nothing is lost (`docs/protocol.md`, Frame).
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_agent.settings import Zone
from sluice_protocol.columns import LogColumns, TextColumn
from sluice_protocol.records import (
    NO_ATTRIBUTES,
    attribute_columns,
    readable_bodies,
    shared_attributes,
)
from sluice_protocol.units import UnixNs

PATH_ATTRIBUTE: Final = "log.file.path"
"""OpenTelemetry's attribute for the path of the file that a line was read from."""
CONTINUES_ATTRIBUTE: Final = "sluice.continues"
"""Set on a piece of a line that exceeds the limit: the line continues in the next record."""
CONTINUES: Final[Mapping[str, str]] = {CONTINUES_ATTRIBUTE: "true"}
Newlines = npt.NDArray[np.intp]
_NEWLINE: Final = 10


def find_newlines(block: bytes) -> Newlines:
    """Return the offset of each newline in a block."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)


def split_lines(
    block: bytes, newlines: Newlines | None = None, ends: Newlines | None = None
) -> TextColumn:
    """Split a block at its newlines; text after the last newline is a line unless it is empty.

    `ends` are the numbers of the newlines at which it is split; without them, at each.
    """
    places = find_newlines(block) if newlines is None else newlines
    if ends is None:
        data = block.replace(b"\n", b"")
    else:
        places = places[ends]
        data = np.delete(np.frombuffer(block, np.uint8), places).tobytes()
    is_last = int(places[-1]) + 1 == len(block) if len(places) else not block
    offsets = np.zeros(len(places) + 2 - is_last, np.int32)
    count = len(places)
    np.subtract(places, np.arange(count), out=offsets[1 : count + 1], casting="same_kind")
    if not is_last:
        offsets[-1] = len(data)
    return TextColumn(offsets=offsets, data=data)


def logs_from_block(
    block: bytes,
    *,
    arrived_ns: UnixNs,
    zone: Zone,
    shared: Mapping[str, str] = NO_ATTRIBUTES,
    newlines: Newlines | None = None,
    ends: Newlines | None = None,
) -> LogColumns:
    """Build log columns from a block of lines.

    Lines without a timestamp have the time `arrived_ns`. Each record has the `shared` attributes.
    `ends` are the numbers of the lines that end a record, if some records have several.
    """
    # A search for one byte is 30 times as fast as one for both.
    if b"\r" in block and b"\r\n" in block:
        block, newlines = block.replace(b"\r\n", b"\n"), None
    body = split_lines(block, newlines, ends)
    # With its newlines: a character whose bytes are in two lines is none.
    if _is_utf8(block):
        attributes = shared_attributes(shared, len(body))
    else:
        body, own = readable_bodies(body.slices(), [shared] * len(body))
        attributes = attribute_columns(own)
    ts = parse_timestamps(body, arrived_ns=arrived_ns, zone=zone)
    return LogColumns(ts=ts, body=body, attributes=attributes)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
