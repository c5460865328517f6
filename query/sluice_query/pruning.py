"""Selection of the data files that a query must read.

A file is left out when its statistics, or an index chunk, show that none of its records can match.
Missing knowledge never leaves a file out: a file without statistics or without a chunk, a chunk
that is missing or cannot be read, and a text too short for the chunk's filters all mean that the
file is read.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deltalake import DeltaTable

from sluice_lake.data_files import (
    STATS_SLACK_NS,
    DataFile,
    TimeStats,
    list_files,
    total_bytes,
)
from sluice_lake.delta import find_table, is_extended, read_lane_versions, refresh_table
from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.schemas import PROMOTES
from sluice_lake.tables import Column, Table
from sluice_protocol.fields import KINDS, TEXT_BYTES_MIN
from sluice_query.request import Query, RecordField, TextCondition
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedFiles:
    """The files of one state of a table that a query must read.

    Attributes:
        extended: The table whose columns some files may do without; None if all have all columns.
        index_bytes: Size of the index chunks read for the selection.
        looked_up: Whether index chunks decided about these files already.
        lanes: Lane to the last queue sequence that this state of the table contains.
        promoted: The promoted columns of this state that the query has a use for.
    """

    location: TableLocation
    read: tuple[DataFile, ...] = ()
    pruned: int = 0
    extended: Table | None = None
    index_bytes: int = 0
    looked_up: bool = False
    lanes: dict[int, int]
    promoted: Mapping[RecordField, Column] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of files of which at least a row group is read."""
        return len({file.path for file in self.read})

    @property
    def size_bytes(self) -> int:
        """Bytes of the files to read and of the index chunks that selected them."""
        return self.index_bytes + total_bytes(self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyTables:
    """Tables that a query opens before it knows what they must contain.

    Attributes:
        files: The selection of the record table in this state; None for a series, whose range is
            not known yet, and without a table.
        version: The version of that state.
    """

    ledger: DeltaTable | None
    records: DeltaTable | None
    files: SelectedFiles | None = None
    version: int = -1


def select_files(
    store_url: str,
    table: Table,
    query: Query,
    lanes: Sequence[int],
    early: EarlyTables | None = None,
) -> SelectedFiles:
    """Select, by their statistics, the files of a record table that may contain matching records.

    The versions of `lanes` are read from the same state of the table, its newest one.
    """
    location = lake_location(store_url, table.name)
    opened = refresh_table(store_url, table, early.records if early else None)
    if opened is None:
        return SelectedFiles(location=location, lanes={})
    if early is not None and early.files is not None and early.version == opened.version():
        selected = early.files
    else:
        selected = select_opened(location, table, query, opened)
    return replace(selected, lanes=read_lane_versions(location, opened, lanes))


def select_opened(
    location: TableLocation, table: Table, query: Query, opened: DeltaTable
) -> SelectedFiles:
    """Select the files of one state of a record table, without versions of lanes."""
    promoted: Mapping[RecordField, Column] = {}
    if any(PROMOTES in one.metadata for one in opened.schema().fields):
        from sluice_query.promoted import label_matchers, may_have_value, usable_columns  # noqa: PLC0415 - only with columns

        promoted = usable_columns(query, opened, table)
    files = list_files(opened, table, promoted=[one.name for one in promoted.values()])
    read = tuple(file for file in files if may_contain(file, query))
    if promoted:
        matchers = label_matchers(query)
        read = tuple(file for file in read if may_have_value(file, matchers, promoted))
    return SelectedFiles(
        location=location,
        read=read,
        pruned=len(files) - len(read),
        extended=table if is_extended(opened, table) else None,
        lanes={},
        promoted=promoted,
    )


def select_partitions(
    store_url: str, table: Table, wanted: Callable[[str], bool]
) -> tuple[DataFile, ...]:
    """Return the files of a table's newest state whose partition is wanted."""
    opened = find_table(store_url, table)
    return () if opened is None else tuple(list_files(opened, table, wanted))


def may_contain(file: DataFile, query: Query) -> bool:
    """Return False if the file's statistics show that no record of the query is in it."""
    if file.records == 0 or not may_have_agent(file, query.agents):
        return False
    if query.around is not None and not may_be_in(query.around.boot_id, file.boots):
        return False
    if query.accepted_from_ns is not None and file.accepted_at.range_ns is not None:
        latest = file.accepted_at.range_ns[1]
        if file.accepted_at.nulls == 0 and latest + STATS_SLACK_NS <= query.accepted_from_ns:
            return False
    if _may_overlap(file.ts, file.records, query):
        return True
    # A record without a time is placed at the acceptance of its batch.
    return file.ts.nulls != 0 and _may_overlap(file.accepted_at, file.records, query)


def _may_overlap(stats: TimeStats, records: int | None, query: Query) -> bool:
    if stats.range_ns is None:
        # Without a range only a file that records that all its values are null is ruled out.
        return stats.nulls is None or stats.nulls != records
    earliest, latest = stats.range_ns
    return earliest < query.to_ns and latest + STATS_SLACK_NS > query.from_ns


def may_have_agent(file: DataFile, agents: tuple[str, ...]) -> bool:
    """Return False if statistics show that a file has no row of the agents; empty means all."""
    return not agents or any(may_be_in(agent, file.agents) for agent in agents)


def may_be_in(text: str, bounds: tuple[str, str] | None) -> bool:
    """Return False if a text is outside of bounds, of which the upper one may be cut."""
    if bounds is None:
        return True
    first, last = bounds
    # The upper bound may be truncated; it then sorts before the longest values of the file.
    return text >= first and (text <= last or text.startswith(last))


def newest_files(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Return files sorted by the time of their latest record, the newest first."""
    return tuple(sorted(files, key=lambda one: time_bounds_ns(one)[1], reverse=True))


def time_bounds_ns(file: DataFile) -> tuple[float, float]:
    """Return bounds of the times of a file's records, Unix ns; infinity for what is not known.

    No record is before the first, all are before the second.
    """
    if file.groups:
        times = [one.times_ns for one in file.groups if one.times_ns is not None]
        if len(times) == len(file.groups):
            return min(start for start, _ in times), max(end for _, end in times) + 1
    bounds = []
    if file.ts.nulls is None or file.ts.nulls != file.records:
        bounds.append(_bounds_ns(file.ts))
    if file.ts.nulls != 0:  # a record without a time is placed at the acceptance of its batch
        bounds.append(_bounds_ns(file.accepted_at))
    return min(start for start, _ in bounds), max(end for _, end in bounds)


def _bounds_ns(stats: TimeStats) -> tuple[float, float]:
    if stats.range_ns is None:
        return -math.inf, math.inf
    # Not floats: times of today have more digits than one.
    return stats.range_ns[0] - STATS_SLACK_NS, stats.range_ns[1] + STATS_SLACK_NS


async def prune_by_index(
    store: ObjectStore, selected: SelectedFiles, query: Query
) -> SelectedFiles:
    """Return the selection without the files and row groups that index chunks rule out."""
    if selected.looked_up or not selected.read or not is_indexed(query):
        return selected
    from sluice_query.text_index import look_up_groups, wanted_terms  # noqa: PLC0415 - only if it decides

    wanted = wanted_terms(query)
    return await look_up_groups(store, selected, query.kind, wanted) if wanted else selected


def is_indexed(query: Query) -> bool:
    """Return True if index chunks may rule out something for a query."""
    indexed = KINDS[query.kind].indexed
    wanted = (any(map(_is_long, query.required)), query.attributes, query.labels, query.filters)
    return bool(indexed) and any(wanted)


def _is_long(condition: TextCondition) -> bool:
    """Return whether each alternative has a text of which chunks have grams."""
    return all(
        any(len(text.encode()) >= TEXT_BYTES_MIN for text in texts)
        for texts in condition.alternatives
    )
