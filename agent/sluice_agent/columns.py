"""Build columns from log text, and concatenate columns.

A record's body is the line's exact bytes without its newline; a carriage return remains. Bytes that
are not UTF-8 become U+FFFD, and the original bytes of the line are added in base64 as the
attribute `sluice.raw`, so that nothing is lost (`docs/protocol.md`, Frame).
"""

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np

from sluice_agent.settings import Zone
from sluice_agent.timestamps import parse_timestamps
from sluice_protocol.columns import (
    I32,
    U8,
    U32,
    AttributeColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)
from sluice_protocol.records import RAW_ATTRIBUTE
from sluice_protocol.units import UnixNs

PATH_ATTRIBUTE: Final = "log.file.path"
"""OpenTelemetry's attribute for the path of the file that a line was read from."""
CONTINUES_ATTRIBUTE: Final = "sluice.continues"
"""Set on a piece of a line that exceeds the limit: the line continues in the next record."""
Pairs = list[tuple[str, str]]
_NEWLINE: Final = 10


def split_lines(block: bytes) -> TextColumn:
    """Split a block at its newlines; text after the last newline is a line unless it is empty."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == _NEWLINE)
    data = block.replace(b"\n", b"")
    edges = ends - np.arange(len(ends))
    tail = [] if block.endswith(b"\n") or not block else [len(data)]
    return TextColumn(offsets=np.concatenate(([0], edges, tail)).astype(np.int32), data=data)


def logs_from_block(
    block: bytes, *, arrived_ns: UnixNs, zone: Zone, path: str = "", continues: bool = False
) -> LogColumns:
    """Build log columns from a block of lines.

    Args:
        block: Whole lines; the newline of the last is optional.
        arrived_ns: The time of lines without a timestamp.
        zone: The time zone of timestamps that specify none.
        path: The file, added to each line as an attribute; empty for a pipe.
        continues: The last line continues in the next block (`sluice.continues`).
    """
    body = split_lines(block)
    extras = [(PATH_ATTRIBUTE, path)] if path else []
    repeated = _repeated(extras, len(body))
    extra: dict[int, Pairs] = {}
    exact = body
    if not _is_utf8(body.data):
        exact, extra = _replace_invalid(body)
    if continues:
        extra.setdefault(len(body) - 1, []).append((CONTINUES_ATTRIBUTE, "true"))
    return LogColumns(
        ts=parse_timestamps(exact, arrived_ns=arrived_ns, zone=zone),
        body=exact,
        attributes=_mixed(extras, extra, len(body)) if extra else repeated,
    )


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


def _repeated(pairs: Pairs, count: int) -> AttributeColumns | None:
    """Return attribute columns in which every record has the same attributes."""
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


def join_logs(parts: Sequence[LogColumns]) -> LogColumns:
    """Concatenate log columns in order."""
    if len(parts) == 1:
        return parts[0]
    return LogColumns(
        ts=np.concatenate([part.ts for part in parts]),
        body=join_text([part.body for part in parts]),
        severity=_join_severity(parts),
        attributes=_join_attributes([(len(part), part.attributes) for part in parts]),
    )


def join_metrics(parts: Sequence[MetricColumns]) -> MetricColumns:
    """Concatenate metric columns in order, with one table of names."""
    if len(parts) == 1:
        return parts[0]
    names, index = _join_names([(part.names, part.name) for part in parts])
    return MetricColumns(
        ts=np.concatenate([part.ts for part in parts]),
        names=names,
        name=index,
        value=np.concatenate([part.value for part in parts]),
        type=np.concatenate([part.type for part in parts]),
        attributes=_join_attributes([(len(part), part.attributes) for part in parts]),
    )


def join_text(parts: Sequence[TextColumn]) -> TextColumn:
    """Concatenate text columns."""
    return TextColumn(
        offsets=_join_offsets([part.offsets for part in parts]),
        data=b"".join(part.data for part in parts),
    )


def _join_offsets(parts: Sequence[I32]) -> I32:
    ends = np.cumsum([0, *(int(part[-1]) for part in parts)])
    moved = [part[1:] + end for part, end in zip(parts, ends[:-1], strict=True)]
    return np.concatenate([[0], *moved]).astype(np.int32)


def _join_severity(parts: Sequence[LogColumns]) -> U8 | None:
    """Use severity 0, OpenTelemetry's "unspecified", for columns without severity."""
    if all(part.severity is None for part in parts):
        return None
    zero = np.uint8(0)
    return np.concatenate(
        [np.full(len(part), zero) if part.severity is None else part.severity for part in parts]
    )


def _join_attributes(
    parts: Sequence[tuple[int, AttributeColumns | None]],
) -> AttributeColumns | None:
    present = [columns for _, columns in parts if columns is not None]
    if not present:
        return None
    names, keys = _join_names([(columns.names, columns.keys) for columns in present])
    offsets = [
        np.zeros(count + 1, np.int32) if columns is None else columns.offsets
        for count, columns in parts
    ]
    return AttributeColumns(
        names=names,
        offsets=_join_offsets(offsets),
        keys=keys,
        values=join_text([columns.values for columns in present]),
    )


def _join_names(parts: Sequence[tuple[tuple[str, ...], U32]]) -> tuple[tuple[str, ...], U32]:
    numbers: dict[str, int] = {}
    moved = []
    for names, index in parts:
        places = [numbers.setdefault(name, len(numbers)) for name in names]
        moved.append(np.array(places, np.uint32)[index])
    return tuple(numbers), np.concatenate(moved)
