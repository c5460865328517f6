"""Promoted columns in a query: which it can use, which files have them, which files it rules out.

A column is used only in files that are certain to have it, by their statistics. Other files, and
pending batches, are searched in their maps, with the same results (ADR 46).
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from deltalake import DeltaTable

from sluice_lake.data_files import DataFile, PromotedStats
from sluice_lake.promoted import converted_text, table_of
from sluice_lake.tables import Column, ColumnType, Table
from sluice_query.engine import LAKE, QueryEngine
from sluice_query.logql.expressions import Matcher, MatchOperator
from sluice_query.logql.stages import split_conditions
from sluice_query.pruning import SelectedFiles, may_be_in
from sluice_query.request import (
    MAPS,
    FieldList,
    Histogram,
    Query,
    RecordField,
    TopValues,
)
from sluice_query.statements import Promoted

RUNS_MAX: Final = 8
"""Sources of one query. Files that alternate more often are searched in their maps."""
_SLACK: Final = 1e-14
"""Numbers in the log of a table are decimal; a reader may round the last digits."""


def usable_columns(query: Query, opened: DeltaTable, table: Table) -> dict[RecordField, Column]:
    """Return the promoted columns of a state of a table that a query has a use for."""
    promoted = table_of(opened, table).promoted_columns
    if query.every_column:
        return {_field_of(column): column for column in promoted}
    columns = {column.promotes: column for column in promoted}
    return {
        one: columns[f"{one.column}.{one.key}"]
        for one in _fields_of(query)
        if f"{one.column}.{one.key}" in columns
    }


def _field_of(column: Column) -> RecordField:
    name, _, key = column.promotes.partition(".")
    return RecordField(name, key)


def _fields_of(query: Query) -> Iterator[RecordField]:
    yield from (RecordField(name, one.name) for name in MAPS for one in label_matchers(query))
    yield from (RecordField(name, key) for name in MAPS for key, _ in query.attributes)
    if isinstance(query.view, TopValues):
        yield query.view.field
    if isinstance(query.view, Histogram) and query.view.by is not None:
        yield query.view.by


def may_have_value(file: DataFile, matchers: Sequence[Matcher], promoted: Promoted) -> bool:
    """Return False if the statistics of promoted columns show that no record of a file matches."""
    for one in matchers:
        column = promoted.get(RecordField("attributes", one.name))
        stats = None if column is None else file.promoted.get(column.name)
        if column is None or stats is None:
            continue
        is_equal = one.operator is MatchOperator.EQUAL and one.value
        if is_equal and not _may_have(stats, column, one.value):
            return False
    return True


def label_matchers(query: Query) -> list[Matcher]:
    """Return the matchers of labels that each record of a query meets as it is stored."""
    if query.pipeline is None:
        return []
    return [*split_conditions(query.pipeline)[0]]


def _may_have(stats: PromotedStats, column: Column, text: str) -> bool:
    # A record without the attribute, or with an empty one, may have the label elsewhere.
    if stats.nulls or stats.bounds is None:
        return True
    value = converted_text(text, column.type)
    if value is None:  # the rows that have this text are null in the column
        return False
    first, last = stats.bounds
    if isinstance(value, str) and isinstance(first, str) and isinstance(last, str):
        return first == "" or may_be_in(value, (first, last))
    if isinstance(value, str) or isinstance(first, str) or isinstance(last, str):
        return True
    least, greatest = _widened(first, last, column)
    return least <= value <= greatest


def _widened(first: float, last: float, column: Column) -> tuple[float, float]:
    if column.type is not ColumnType.DOUBLE:
        return first, last
    return (
        first - abs(first) * _SLACK - sys.float_info.min,
        last + abs(last) * _SLACK + sys.float_info.min,
    )


def register_runs(
    engine: QueryEngine,
    query: Query,
    found: SelectedFiles,
    files: Sequence[DataFile],
    name: str = LAKE,
) -> dict[str, Promoted]:
    """Register files as sources, each of files that have the promoted columns or of others.

    The name of each source begins with `name`. Return the columns by the name of a source. The
    files keep their order where a bounded sample of them is counted.
    """
    extended, columns = found.extended, tuple(found.promoted.values())
    promoted: dict[str, Promoted] = {}
    in_order = isinstance(query.view, TopValues | FieldList)
    for number, (has_all, run) in enumerate(_runs(files, columns, in_order=in_order)):
        source = f"{name}_{number}"
        whole = extended.with_promoted(columns) if extended and has_all else extended
        engine.register_files(source, run, found.location, whole)
        promoted[source] = found.promoted if has_all else {}
    return promoted


def _runs(
    files: Sequence[DataFile], columns: Sequence[Column], *, in_order: bool
) -> list[tuple[bool, tuple[DataFile, ...]]]:
    def has_all(file: DataFile) -> bool:
        return all(column.name in file.promoted for column in columns)

    ordered = files if in_order else sorted(files, key=has_all, reverse=True)
    runs = [(has, tuple(some)) for has, some in groupby(ordered, key=has_all)]
    if len(runs) <= RUNS_MAX:
        return runs
    rest = tuple(file for _, run in runs[RUNS_MAX - 1 :] for file in run)
    return [*runs[: RUNS_MAX - 1], (False, rest)]
