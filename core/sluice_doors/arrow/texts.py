"""Text in Arrow arrays: buffers without copies of values, and values of OTLP as text."""

import base64
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice_doors.attributes import double_text, value_text
from sluice_doors.decoded import BodyUnreadable
from sluice_doors.otlp.protobuf import read_array, read_map
from sluice_protocol.columns import I32, U8, TextColumn
from sluice_protocol.values import ValueType, some_types

ArrowArray = Any
"""An array of pyarrow, which has no types."""
_BINARY: Final = pa.binary()
_CONTINUATION_MASK: Final = 0xC0
_CONTINUATION: Final = 0x80
_NO_VALUE: Final = b"null"


class NotPlain(Exception):
    """The request has a part that has to be mapped record by record."""


def list_offsets(array: ArrowArray) -> I32:
    """Return the offsets of a list array, into its values."""
    return np.asarray(array.offsets.to_numpy(zero_copy_only=False), np.int32)


def integers(array: ArrowArray) -> npt.NDArray[Any]:
    """Return a column of numbers without nulls."""
    return np.asarray(array.to_numpy(zero_copy_only=False))


def text_of(array: ArrowArray) -> TextColumn:
    """Return a binary array as a text column; a null is empty."""
    array = array.cast(_BINARY) if array.type != _BINARY else array
    if not len(array):
        return TextColumn(offsets=np.zeros(1, np.int32), data=b"")
    _, offsets_buffer, data_buffer = array.buffers()
    offsets = _offsets(array, offsets_buffer)
    first, last = int(offsets[0]), int(offsets[-1])
    data = b"" if data_buffer is None else data_buffer[first:last].to_pybytes()
    return TextColumn(offsets=(offsets - first).astype(np.int32, copy=False), data=data)


def check_text(column: TextColumn) -> None:
    """Check that every string is UTF-8."""
    if column.data.isascii():
        return
    try:
        column.data.decode()
    except UnicodeDecodeError as error:
        raise NotPlain from error
    starts = column.offsets[np.flatnonzero(column.offsets < len(column.data))]
    lead = np.frombuffer(column.data, np.uint8)[starts]
    if bool(np.any((lead & _CONTINUATION_MASK) == _CONTINUATION)):
        raise NotPlain


def lengths(array: ArrowArray) -> I32:
    """Return the length of each string of a binary array; a null is empty."""
    if not len(array):
        return np.zeros(0, np.int32)
    return np.diff(_offsets(array, array.buffers()[1]))


def _offsets(array: ArrowArray, buffer: ArrowArray) -> I32:
    return np.frombuffer(buffer, np.int32)[array.offset : array.offset + len(array) + 1]


def decimal_texts(array: ArrowArray) -> ArrowArray:
    """Return integers as decimal text."""
    return array.cast(pa.string()).cast(pa.binary())


def hex_texts(array: ArrowArray) -> ArrowArray:
    """Return bytes as hexadecimal text."""
    column = text_of(array)
    data = column.data.hex().encode()
    return binary_array(TextColumn(offsets=column.offsets * 2, data=data))


def binary_array(column: TextColumn) -> ArrowArray:
    """Return a text column as an Arrow array that shares its memory."""
    buffers = [None, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(_BINARY, len(column), buffers)


def value_texts(values: ArrowArray, *, unset: bytes = _NO_VALUE) -> ArrowArray:
    """Return an array of OTLP values as text, like `attributes.value_text`.

    `values` is a struct array of `AnyValue`. A value that is not set has the text `unset`.
    """
    strings = values.field("string_value")
    if strings.null_count == 0:
        return strings
    parts = [
        strings,
        values.field("int_value").cast(pa.string()).cast(pa.binary()),
        pc.if_else(values.field("bool_value"), b"true", b"false"),
        *_converted(values),
        pa.scalar(unset, pa.binary()),
    ]
    return pc.coalesce(*parts)


_KIND_OF: Final = {
    "int_value": ValueType.INTEGER,
    "double_value": ValueType.FLOAT,
    "bool_value": ValueType.BOOLEAN,
    "bytes_value": ValueType.BYTES,
}


def value_kinds(values: ArrowArray) -> U8 | None:
    """Return the types of an array of OTLP values, like `attributes.value_text`.

    None if all are text. What is neither text nor a number, a boolean or bytes is JSON, of at most
    the hundred levels that protobuf allows.
    """
    strings = values.field("string_value")
    if strings.null_count == 0:
        return None
    kinds = np.full(len(values), ValueType.JSON, np.uint8)
    for name, kind in {"string_value": ValueType.TEXT, **_KIND_OF}.items():
        column = values.field(name)
        if column.null_count < len(column):
            kinds[integers(column.is_valid())] = kind
    return some_types(kinds)


def _converted(values: ArrowArray) -> list[ArrowArray]:
    found = []
    for name, convert in (
        ("double_value", double_text),
        ("bytes_value", _base64),
        ("array_value", lambda data: value_text(read_array(data))),
        ("kvlist_value", lambda data: value_text(read_map(data))),
    ):
        column = values.field(name)
        if column.null_count < len(column):
            try:
                texts = [None if one is None else convert(one) for one in column.to_pylist()]
            except BodyUnreadable as error:  # only its record is kept raw
                raise NotPlain from error
            # A surrogate cannot be encoded: the mapping record by record repairs it.
            try:
                found.append(pa.array(texts, pa.string()).cast(pa.binary()))
            except UnicodeEncodeError as error:
                raise NotPlain from error
    if values.field("string_value_strindex").null_count < len(values):
        raise NotPlain
    return found


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
