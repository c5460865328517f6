"""Blocks of log text to columns, whole blocks at a time.

A record's body is the line's exact bytes without its newline; a carriage return stays. Bytes that
are not UTF-8 become U+FFFD, and the line's own bytes go along as `sluice.raw` in base64, so that
nothing is lost (`docs/protocol.md`, Frame).
"""

import base64
from typing import Final

import numpy as np

from sluice_agent.timestamps import Zone, parse_timestamps
from sluice_protocol.columns import AttributeColumns, LogColumns, TextColumn
from sluice_protocol.records import RAW_ATTRIBUTE
from sluice_protocol.units import UnixNs

PATH_ATTRIBUTE: Final = "log.file.path"
"""OpenTelemetry's name of the attribute that says which file a line stood in."""
CONTINUES_ATTRIBUTE: Final = "sluice.continues"
"""Set on a piece of a line longer than the limit: the next record goes on with the same line."""
_NEWLINE: Final = 10


def split_lines(block: bytes) -> TextColumn:
    """Cuts a block at its newlines; what follows the last newline is a line only if not empty."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
    data = block.replace(b"\n", b"")
    edges = ends - np.arange(len(ends))
    tail = [] if block.endswith(b"\n") or not block else [len(data)]
    return TextColumn(offsets=np.concatenate(([0], edges, tail)).astype(np.int32), data=data)


def logs_from_block(
    block: bytes, *, arrived_ns: UnixNs, zone: Zone, path: str = "", continues: bool = False
) -> LogColumns:
    """Makes log columns of a block of lines.

    Args:
        block: Whole lines; the last may lack its newline.
        arrived_ns: The time of every line that carries none of its own.
        zone: The zone of timestamps that name none.
        path: The file, put on each line as an attribute; empty for a pipe.
        continues: The last line goes on in the next block (`sluice.continues`).
    """
    body = split_lines(block)
    extras = [(PATH_ATTRIBUTE, path)] if path else []
    repeated = _repeated(extras, len(body))
    odd: dict[int, Pairs] = {}
    try:
        body.data.decode()
        exact = body
    except UnicodeDecodeError:
        exact, odd = _mend(body)
    if continues:
        odd.setdefault(len(body) - 1, []).append((CONTINUES_ATTRIBUTE, "true"))
    return LogColumns(
        ts=parse_timestamps(exact, arrived_ns=arrived_ns, zone=zone),
        body=exact,
        attributes=_mixed(extras, odd, len(body)) if odd else repeated,
    )


Pairs = list[tuple[str, str]]


def _mend(body: TextColumn) -> tuple[TextColumn, dict[int, Pairs]]:
    """Replaces what is not UTF-8 and gives the original of each such line as an attribute."""
    texts: list[bytes] = []
    odd: dict[int, Pairs] = {}
    for index, line in enumerate(body.slices()):
        text = line.decode(errors="replace").encode()
        if text != line:
            odd[index] = [(RAW_ATTRIBUTE, base64.b64encode(line).decode())]
        texts.append(text)
    return text_column(texts), odd


def text_column(texts: list[bytes]) -> TextColumn:
    """Lays strings end to end."""
    offsets = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return TextColumn(offsets=offsets, data=b"".join(texts))


def _repeated(pairs: Pairs, count: int) -> AttributeColumns | None:
    """Gives every record the same attributes."""
    if not pairs or not count:
        return None
    width = len(pairs)
    values = [value.encode() for _, value in pairs]
    sizes = [len(value) for value in values]
    ends = np.arange(count, dtype=np.int32)[:, None] * sum(sizes) + np.cumsum(sizes)
    return AttributeColumns(
        names=tuple(name for name, _ in pairs),
        offsets=np.arange(0, width * count + 1, width, dtype=np.int32),
        keys=np.tile(np.arange(width, dtype=np.uint32), count),
        values=TextColumn(
            offsets=np.concatenate(([0], ends.ravel())).astype(np.int32),
            data=b"".join(values) * count,
        ),
    )


def _mixed(extras: Pairs, odd: dict[int, Pairs], count: int) -> AttributeColumns | None:
    """Gives every record `extras` and some records attributes of their own."""
    return attribute_columns([extras + odd.get(index, []) for index in range(count)])


def attribute_columns(records: list[Pairs]) -> AttributeColumns | None:
    """Makes attribute columns of each record's pairs; none when no record has any."""
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
