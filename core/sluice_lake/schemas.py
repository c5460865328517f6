"""Arrow and Delta schemas of the lake's tables, and arrays over memory that exists."""

import json
from collections.abc import Hashable, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_lake.tables import Column, ColumnType, Table
from sluice_protocol.columns import TextColumn

PROMOTES: Final = "sluice.promotes"
"""Name in the metadata of a field of a Delta schema: the attribute that the column promotes."""
_Value = TypeVar("_Value", bound=Hashable)
TEXT_MAP: Final = pa.map_(pa.string(), pa.string())

ARROW: Final = {
    ColumnType.STRING: pa.string(),
    ColumnType.BINARY: pa.binary(),
    ColumnType.INTEGER: pa.int32(),
    ColumnType.LONG: pa.int64(),
    ColumnType.DOUBLE: pa.float64(),
    ColumnType.BOOLEAN: pa.bool_(),
    ColumnType.DATE: pa.date32(),
    ColumnType.TIMESTAMP: pa.timestamp("us", tz="UTC"),
    ColumnType.TEXT_MAP: TEXT_MAP,
}


def arrow_schema(table: Table, *, partition: bool = True) -> pa.Schema:
    """Return the Arrow schema of a table, with or without its partition column.

    Every column is nullable: Spark refuses an Arrow batch whose nullability differs from the
    declared one, and Delta declares nullable columns.
    """
    columns = table.columns if partition else table.stored_columns
    return pa.schema([pa.field(column.name, ARROW[column.type]) for column in columns])


def schema_json(table: Table) -> str:
    """Return a table's schema in the JSON form that Delta and Spark share."""
    fields = [
        {
            "name": column.name,
            "type": _json_type(column.type),
            "nullable": True,
            "metadata": _metadata(column),
        }
        for column in table.columns
    ]
    return json.dumps({"type": "struct", "fields": fields})


def _metadata(column: Column) -> dict[str, str]:
    promotes = {PROMOTES: column.promotes} if column.promotes else {}
    return {"comment": column.meaning, **promotes}


def _json_type(kind: ColumnType) -> str | dict[str, object]:
    if kind is not ColumnType.TEXT_MAP:
        return str(kind)
    return {
        "type": "map",
        "keyType": "string",
        "valueType": "string",
        "valueContainsNull": True,
    }


def coded(values: Sequence[_Value]) -> tuple[list[_Value], npt.NDArray[np.int32]]:
    """Return the distinct values in the order of their first one, and the place of each value."""
    distinct = list(dict.fromkeys(values))
    place_of = {value: place for place, value in enumerate(distinct)}
    places = (place_of[value] for value in values)
    return distinct, np.fromiter(places, np.int32, len(values))


def number_array(
    values: npt.NDArray[np.generic], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Wrap numbers without a copy, null where they are not `valid`.

    `pa.array` would import `numpy.ma`, and pandas if it exists.
    """
    dense = np.ascontiguousarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bits, pa.py_buffer(dense)]
    return pa.Array.from_buffers(pa.from_numpy_dtype(dense.dtype), len(dense), buffers)


def text_array(column: TextColumn, kind: pa.DataType, *, empty_is_null: bool = False) -> pa.Array:
    """Wrap a text or bytes column as an Arrow array over the same memory."""
    offsets = np.ascontiguousarray(column.offsets, dtype=np.int32)
    bits = None
    if empty_is_null:
        bits = pa.py_buffer(np.packbits(offsets[1:] > offsets[:-1], bitorder="little"))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with exactly the columns of a schema; one that they do not have is null."""
    arrays = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)
