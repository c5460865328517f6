"""Every rule of protocol section 3 on columns, each over whole arrays: no loop over records.

The same checks stand before encoding and after decoding, so that no frame leaves that would not be
taken in.
"""

import codecs
from typing import Final

import numpy as np
import numpy.typing as npt

from sluice_protocol.columns import (
    U32,
    AttributeColumns,
    Columns,
    EntryColumns,
    LogColumns,
    MetricColumns,
    TextColumn,
)
from sluice_protocol.errors import InvalidFrame

SEVERITY_MAX: Final = 24
METRIC_TYPE_MAX: Final = 2
_UTF8_STEP_BYTES: Final = 1 << 20
"""Text is checked in steps: one wide character would make a copy of the whole four times larger."""
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80


def check_columns(columns: Columns, count: int) -> None:
    """Refuses columns that break a rule of their kind.

    Args:
        columns: The columns of one frame.
        count: Number of records that the envelope's range spans.

    Raises:
        InvalidFrame: The error names the column as `docs/protocol.md` does.
    """
    match columns:
        case LogColumns():
            _check_logs(columns, count)
        case MetricColumns():
            _check_metrics(columns, count)
        case EntryColumns():
            _check_entries(columns, count)


def _check_logs(columns: LogColumns, count: int) -> None:
    _check_length("ts", columns.ts, count)
    _check_text("body", columns.body, count)
    if columns.severity is not None:
        _check_length("severity", columns.severity, count)
        _check_most("severity", columns.severity, SEVERITY_MAX)
    _check_attributes(columns.attributes, count)


def _check_metrics(columns: MetricColumns, count: int) -> None:
    for field, column in (
        ("ts", columns.ts),
        ("name", columns.name),
        ("value", columns.value),
        ("type", columns.type),
    ):
        _check_length(field, column, count)
    _check_most("type", columns.type, METRIC_TYPE_MAX)
    _check_names("names", columns.names, "name", columns.name)
    _check_attributes(columns.attributes, count)


def _check_entries(columns: EntryColumns, count: int) -> None:
    _check_offsets("key_off", columns.key.offsets, count, len(columns.key.data))
    _check_offsets("val_off", columns.value.offsets, count, len(columns.value.data))
    if columns.ts is not None:
        _check_length("ts", columns.ts, count)


def _check_attributes(columns: AttributeColumns | None, count: int) -> None:
    if columns is None:
        return
    pairs = len(columns.keys)
    _check_offsets("attr_off", columns.offsets, count, pairs)
    _check_text("attr_val", columns.values, pairs)
    _check_names("attr_names", columns.names, "attr_key", columns.keys)
    _check_key_once(columns)


def _check_length(field: str, column: npt.NDArray[np.generic], count: int) -> None:
    if len(column) != count:
        raise InvalidFrame(field, f"must have count={count} values, has {len(column)}")


def _check_most(field: str, column: npt.NDArray[np.unsignedinteger], most: int) -> None:
    if len(column) and int(column.max()) > most:
        raise InvalidFrame(field, f"holds a value above {most}")


def _check_offsets(field: str, offsets: npt.NDArray[np.int32], count: int, end: int) -> None:
    if len(offsets) != count + 1:
        raise InvalidFrame(field, f"must have {count + 1} offsets, has {len(offsets)}")
    if offsets[0] != 0:
        raise InvalidFrame(field, "does not start at 0")
    if np.any(offsets[1:] < offsets[:-1]):
        raise InvalidFrame(field, "falls")
    if offsets[-1] != end:
        raise InvalidFrame(field, f"does not end at {end}")


def _check_text(field: str, column: TextColumn, count: int) -> None:
    _check_offsets(f"{field}_off", column.offsets, count, len(column.data))
    if column.data.isascii():
        return
    _check_utf8(field, column.data)
    # The whole is valid, so a slice is valid unless it starts inside a character.
    starts = column.offsets[np.flatnonzero(column.offsets < len(column.data))]
    lead = np.frombuffer(column.data, np.uint8)[starts]
    if np.any((lead & _CONTINUATION_MASK) == _CONTINUATION):
        raise InvalidFrame(f"{field}_off", "cuts a UTF-8 character")


def _check_utf8(field: str, data: bytes) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    view = memoryview(data)
    try:
        for start in range(0, len(data), _UTF8_STEP_BYTES):
            decoder.decode(view[start : start + _UTF8_STEP_BYTES])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise InvalidFrame(field, "is not valid UTF-8") from error


def _check_names(field: str, names: tuple[str, ...], index_field: str, index: U32) -> None:
    if "" in names:
        raise InvalidFrame(field, "holds an empty name")
    if len(set(names)) != len(names):
        raise InvalidFrame(field, "holds a name twice")
    if len(index) and int(index.max()) >= len(names):
        raise InvalidFrame(index_field, f"points past the {len(names)} names")
    used = np.zeros(len(names), np.bool_)
    used[index] = True
    if not used.all():
        raise InvalidFrame(field, "holds a name that no record uses")


def _check_key_once(columns: AttributeColumns) -> None:
    keys = columns.keys
    if _rises_within_records(columns):
        return
    record = np.repeat(np.arange(len(columns.offsets) - 1), np.diff(columns.offsets))
    pairs = record * len(columns.names) + keys
    pairs.sort()
    if np.any(pairs[1:] == pairs[:-1]):
        raise InvalidFrame("attr_key", "a record has an attribute key twice")


def _rises_within_records(columns: AttributeColumns) -> bool:
    # What our own encoder writes: keys rising inside each record need no sort.
    keys = columns.keys
    rises = np.ones(len(keys) + 1, np.bool_)
    rises[1:-1] = keys[1:] > keys[:-1]
    rises[columns.offsets] = True
    return bool(rises.all())
