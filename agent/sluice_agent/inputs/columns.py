"""Build columns from log text and from pairs.

A record's body is the line's exact bytes without its line end, which is LF or CR LF. Bytes that
are not UTF-8 become U+FFFD, and the original bytes of the line are added in base64 as the
attribute `sluice.raw`, so that nothing is lost (`docs/protocol.md`, Frame).
"""

import base64
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_agent.inputs.timestamps import parse_timestamps
from sluice_agent.settings import Zone
from sluice_protocol.columns import (
    AttributeColumns,
    LogColumns,
    TextColumn,
)
from sluice_protocol.records import RAW_ATTRIBUTE
from sluice_protocol.units import UnixNs

PATH_ATTRIBUTE: Final = "log.file.path"
"""OpenTelemetry's attribute for the path of the file that a line was read from."""
CONTINUES_ATTRIBUTE: Final = "sluice.continues"
"""Set on a piece of a line that exceeds the limit: the line continues in the next record."""
Pairs = list[tuple[str, str]]
Newlines = npt.NDArray[np.intp]
_NEWLINE: Final = 10


def find_newlines(block: bytes) -> Newlines:
    """Return the offset of each newline in a block."""
    return np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)


def split_lines(block: bytes, newlines: Newlines | None = None) -> TextColumn:
    """Split a block at its newlines; text after the last newline is a line unless it is empty."""
    ends = find_newlines(block) if newlines is None else newlines
    data = block.replace(b"\n", b"")
    tail = 0 if block.endswith(b"\n") or not block else 1
    offsets = np.zeros(len(ends) + 1 + tail, np.int32)
    np.subtract(ends, np.arange(len(ends)), out=offsets[1 : len(ends) + 1], casting="same_kind")
    if tail:
        offsets[-1] = len(data)
    return TextColumn(offsets=offsets, data=data)


def logs_from_block(
    block: bytes,
    *,
    arrived_ns: UnixNs,
    zone: Zone,
    path: str = "",
    continues: bool = False,
    newlines: Newlines | None = None,
) -> LogColumns:
    """Build log columns from a block of lines.

    Lines without a timestamp have the time `arrived_ns`; with `continues`, the last line continues
    in the next block (`sluice.continues`). `path` becomes an attribute of each line; it is empty
    for a pipe.
    """
    if b"\r\n" in block:
        block, newlines = block.replace(b"\r\n", b"\n"), None
    body = split_lines(block, newlines)
    extras = [(PATH_ATTRIBUTE, path)] if path else []
    extra: dict[int, Pairs] = {}
    exact = body
    if not _is_utf8(body.data):
        exact, extra = _replace_invalid(body)
    if continues:
        extra.setdefault(len(body) - 1, []).append((CONTINUES_ATTRIBUTE, "true"))
    if extra:
        attributes = _mixed(extras, extra, len(body))
    else:
        attributes = _repeated(PATH_ATTRIBUTE, path.encode(), len(body)) if path else None
    ts = parse_timestamps(exact, arrived_ns=arrived_ns, zone=zone)
    return LogColumns(ts=ts, body=exact, attributes=attributes)


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _replace_invalid(body: TextColumn) -> tuple[TextColumn, dict[int, Pairs]]:
    """Replace invalid UTF-8, and return the original of each such line as an attribute."""
    texts: list[bytes] = []
    extra: dict[int, Pairs] = {}
    for index, line in enumerate(body.slices()):
        text = line.decode(errors="replace").encode()
        if text != line:
            extra[index] = [(RAW_ATTRIBUTE, base64.b64encode(line).decode())]
        texts.append(text)
    return text_column(texts), extra


def text_column(texts: list[bytes]) -> TextColumn:
    """Build a text column of strings."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return TextColumn(offsets=offsets, data=b"".join(texts))


def _repeated(name: str, value: bytes, count: int) -> AttributeColumns | None:
    """Return attribute columns in which every record has the same attribute."""
    if not count:
        return None
    ends = np.arange(count + 1, dtype=np.int32)
    return AttributeColumns(
        names=(name,),
        offsets=ends,
        keys=np.zeros(count, np.uint32),
        values=TextColumn(offsets=ends * np.int32(len(value)), data=value * count),
    )


def _mixed(extras: Pairs, extra: dict[int, Pairs], count: int) -> AttributeColumns | None:
    """Return attribute columns with `extras` for every record and `extra` for some."""
    return attribute_columns([extras + extra.get(index, []) for index in range(count)])


def attribute_columns(records: list[Pairs]) -> AttributeColumns | None:
    """Build attribute columns from each record's pairs; None if no record has any."""
    keys: dict[str, int] = {}
    key = [keys.setdefault(name, len(keys)) for pairs in records for name, _ in pairs]
    if not key:
        return None
    offsets = np.zeros(len(records) + 1, np.int32)
    np.cumsum([len(pairs) for pairs in records], out=offsets[1:])
    return AttributeColumns(
        names=tuple(keys),
        offsets=offsets,
        keys=np.array(key, np.uint32),
        values=text_column([value.encode() for pairs in records for _, value in pairs]),
    )
