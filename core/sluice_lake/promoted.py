"""Promoted columns: what a table has of them, and their values from the maps of its rows.

A data file has a promoted column if and only if its writer filled it from every row. So the column
of a file is either missing or the same function of the maps for every writer. Compaction fills it
again in each file that it writes. A value that does not convert is null, and stays in its
map as it was sent.

The schema of the table states the attribute of each promoted column. A writer goes by the state
that it has opened, and needs nothing else to agree with other writers.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice_lake.schemas import ARROW, PROMOTES, number_array
from sluice_lake.tables import RECORD_TABLES, Column, ColumnType, Table
from sluice_protocol.fields import Kind
from sluice_protocol.promotions import (
    PromotedType,
    Promotion,
    is_promoted_name,
    parse_promoted,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable

COLUMN_TYPES: Final = {
    PromotedType.TEXT: ColumnType.STRING,
    PromotedType.INTEGER: ColumnType.LONG,
    PromotedType.FLOAT: ColumnType.DOUBLE,
    PromotedType.BOOLEAN: ColumnType.BOOLEAN,
}
_TYPES: Final = frozenset(COLUMN_TYPES.values())


def promoted_column(promotion: Promotion) -> Column:
    """Return the column of a promotion."""
    return _column(promotion.column, COLUMN_TYPES[promotion.type], promotion.field)


def _column(name: str, kind: ColumnType, promotes: str) -> Column:
    return Column(
        name=name,
        type=kind,
        meaning=f"{promotes}, or null if it does not convert",
        skippable=True,
        addable=True,
        promotes=promotes,
    )


def table_of(opened: "DeltaTable", table: Table) -> Table:
    """Return a table with the promoted columns that this state of it has.

    A column that another program gave such metadata, under another name or type, is none.
    """
    found = []
    for field in opened.schema().fields:
        promotes = str(field.metadata.get(PROMOTES, ""))
        name = getattr(field.type, "type", None)
        if is_promoted_name(field.name) and parse_promoted(promotes) and name in _TYPES:
            found.append(_column(field.name, ColumnType(name), promotes))
    return table.without_promoted.with_promoted(found)


def add_promoted(store_url: str, kind: Kind, promotions: Sequence[Promotion]) -> None:
    """Add the columns of promotions of a kind to its table, if it exists and does not have them.

    Raises:
        TableRefused: The table has such a column with another type, or cannot be written.
        CommitConflict: Other writers kept changing the columns of the table.
    """
    columns = [promoted_column(one) for one in promotions if one.kind == kind]
    if columns:
        from sluice_lake.delta import find_table  # noqa: PLC0415 - the data source needs no Delta

        table = RECORD_TABLES[kind].with_promoted(columns)
        find_table(store_url, table, for_writing=True, extend=True)


def with_promoted_values(rows: pa.Table, columns: Iterable[Column]) -> pa.Table:
    """Return rows of a record table with columns that follow from their maps."""
    for column in columns:
        if column.name in rows.column_names:
            rows = rows.drop_columns([column.name])
        source, key = parse_promoted(column.promotes) or ("", "")
        chunks = [_values(maps, key, column.type) for maps in rows.column(source).chunks]
        kind = chunks[0].type if chunks else ARROW[column.type]
        rows = rows.append_column(column.name, pa.chunked_array(chunks, kind).unify_dictionaries())
    return rows


def _values(maps: pa.MapArray, key: str, kind: ColumnType) -> pa.Array:
    """Return the values of a promoted column; a text is a dictionary if those of the maps are."""
    texts = map_texts(maps, key)
    if not pa.types.is_dictionary(texts.type):
        return converted(texts, kind)
    # A text of a resource is never repeated for each of its records: it may be long.
    used = pc.unique(texts.indices).drop_null()
    distinct = texts.dictionary.take(used).dictionary_encode()
    codes = distinct.indices.take(pc.index_in(texts.indices, used))
    if kind is ColumnType.STRING:
        return pa.DictionaryArray.from_arrays(codes, distinct.dictionary)
    return converted(distinct.dictionary, kind).take(codes)


def map_texts(maps: pa.MapArray, key: str) -> pa.Array:
    """Return the text of each map under a key, null where it has none."""
    keys = maps.keys
    if pa.types.is_dictionary(keys.type):
        place = keys.dictionary.index(key).as_py()
        codes = keys.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        pairs = np.flatnonzero(codes == place) if place >= 0 else np.zeros(0, np.int64)
    else:
        same = pc.fill_null(pc.equal(keys, key), fill_value=False)
        pairs = np.flatnonzero(same.to_numpy(zero_copy_only=False))
    offsets = maps.offsets.to_numpy(zero_copy_only=False)
    pairs = pairs[(pairs >= offsets[0]) & (pairs < offsets[-1])]
    rows, firsts = np.unique(np.searchsorted(offsets, pairs, side="right") - 1, return_index=True)
    places = np.full(len(maps), -1, np.int64)
    places[rows] = pairs[firsts]
    if maps.null_count:
        places[maps.is_null().to_numpy(zero_copy_only=False)] = -1
    return maps.items.take(number_array(places, places >= 0))


INTEGER: Final = r"^(?:0|-?[1-9][0-9]{0,18})$"
_DIGITS_MAX: Final = 19
FLOAT: Final = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?$"
FLOAT_BYTES_MAX: Final = 1_000
"""A longer text is no number that anyone has sent, and costs as much as it is long."""


def converted(texts: pa.Array, kind: ColumnType) -> pa.Array:
    """Return texts as values of a promoted column; null where one does not convert."""
    match kind:
        case ColumnType.LONG:
            return _where(texts, _is_integer(texts)).cast(pa.int64())
        case ColumnType.DOUBLE:
            short = pc.less_equal(pc.binary_length(texts), FLOAT_BYTES_MAX)
            is_number = pc.and_(short, pc.match_substring_regex(texts, FLOAT))
            values = _where(texts, is_number).cast(pa.float64())
            return pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))
        case ColumnType.BOOLEAN:
            is_true, is_false = pc.equal(texts, "true"), pc.equal(texts, "false")
            return pc.if_else(pc.or_(is_true, is_false), is_true, pa.scalar(None, pa.bool_()))
        case _:
            return texts


def converted_text(text: str, kind: ColumnType) -> str | int | float | bool | None:
    """Return the value of a promoted column for one text."""
    value: str | int | float | bool | None = converted(pa.array([text], pa.string()), kind)[
        0
    ].as_py()
    return value


def _is_integer(texts: pa.Array) -> Any:  # noqa: ANN401 - pyarrow has no types
    digits = pc.utf8_ltrim(texts, "-")
    limit = pc.if_else(pc.starts_with(texts, "-"), str(1 << 63), str((1 << 63) - 1))
    small = pc.or_(
        pc.less(pc.binary_length(digits), _DIGITS_MAX), pc.less_equal(digits, limit)
    )  # texts of the same length have the order of their numbers
    return pc.and_(pc.match_substring_regex(texts, INTEGER), small)


def _where(texts: pa.Array, wanted: Any) -> pa.Array:  # noqa: ANN401 - pyarrow has no types
    return pc.if_else(wanted, texts, pa.scalar(None, pa.string()))
