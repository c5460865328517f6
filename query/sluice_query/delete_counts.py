"""Counts of what a delete hides: in a table of the lake, in pending batches, in rollups."""

from datetime import UTC, datetime
from typing import Final

from sluice_lake.locations import lake_location
from sluice_lake.tables import RECORD_TABLES, ROLLUPS
from sluice_protocol.record_deletes import DeleteRecord, is_retention
from sluice_protocol.units import NS_PER_S
from sluice_query.engine import LAKE, PENDING, QueryEngine
from sluice_query.pruning import select_files, select_partitions
from sluice_query.request import Query, query_of_delete
from sluice_query.result import MatchCount
from sluice_query.sql import RecordSources, matches_sql, rollup_matches_sql

_ROLLUPS: Final = "rollups"
_DAY_NS: Final = 86_400 * NS_PER_S
_FIRST_DAY: Final = "0001-01-01"
_LAST_DAY: Final = "9999-12-31"


def count_matches(
    engine: QueryEngine, query: Query, record: DeleteRecord, sources: RecordSources
) -> tuple[MatchCount, ...]:
    """Count the records of each registered source that a delete would hide in addition."""
    names = {LAKE: RECORD_TABLES[record.kind].name, PENDING: PENDING}
    others = [one for one in sources.deletes if one.delete_id != record.delete_id]
    found = []
    for source in sources.names:
        records, batches = engine.rows(matches_sql(source, record, query, others))[0]
        found.append(MatchCount(source=names[source], records=records, batches=batches))
    return tuple(found)


def count_in_table(engine: QueryEngine, store_url: str, record: DeleteRecord) -> int:
    """Count the records in the newest state of a delete's table that it hides.

    Raises:
        TableRefused: The table cannot be used safely.
        QueryTooLarge: The memory limit is exceeded.
    """
    table, query = RECORD_TABLES[record.kind], query_of_delete(record)
    files = select_files(store_url, table, query, ())
    if not files.read:
        return 0
    engine.register_files(LAKE, files.read, files.location)
    return int(engine.rows(matches_sql(LAKE, record, query, ()))[0][0])


def applies_to_rollups(record: DeleteRecord) -> bool:
    """Return True if rollups change with a delete; retention keeps them (ADR 35)."""
    return record.kind == "metrics" and not is_retention(record)


def count_in_rollups(
    engine: QueryEngine, store_url: str, record: DeleteRecord
) -> tuple[MatchCount, ...]:
    """Count the rows of `rollups` that may contain a deleted point; empty if it does not apply.

    Raises:
        TableRefused: The table cannot be used safely.
        QueryTooLarge: The memory limit is exceeded.
    """
    if not applies_to_rollups(record):
        return ()
    first, last = _day(record.from_unix_ns, _FIRST_DAY), _day(record.to_unix_ns, _LAST_DAY)
    files = select_partitions(store_url, ROLLUPS, lambda day: first <= day <= last)
    rows = 0
    if files:
        engine.register_files(_ROLLUPS, files, lake_location(store_url, ROLLUPS.name))
        rows = int(engine.rows(rollup_matches_sql(_ROLLUPS, record))[0][0])
    return (MatchCount(source=ROLLUPS.name, records=rows, batches=None),)


def _day(at_ns: int | None, default: str) -> str:
    """Return the UTC date of a time, or a default if there is none or it has no date."""
    if at_ns is None:
        return default
    try:
        return datetime.fromtimestamp(at_ns // _DAY_NS * 86_400, UTC).strftime("%Y-%m-%d")
    except (OverflowError, ValueError, OSError):
        return default
