"""Which files of a lake table a query must read: opened, checked, pruned by their statistics.

A segment is one data file. Files are named by delta-rs and read by DuckDB, which knows nothing of
Delta: a table whose files alone do not say what is in it is refused.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from sluice_protocol.lake import Table, ingest_app_id
from sluice_protocol.units import NS_PER_S
from sluice_query.errors import LakeRefused
from sluice_query.request import Query
from sluice_store.lake import TableLocation, lake_location

REFUSED_FEATURES: Final = frozenset({"deletionVectors", "clustering", "columnMapping"})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_NS_PER_US: Final = NS_PER_S // 1_000_000
_STATS_STEP_NS: Final = NS_PER_S // 1000
"""Delta's writers cut the times in their statistics to milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One data file: its name within the table, where it is, and how large."""

    name: str
    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """The files of a table that a query must read.

    Attributes:
        location: Where the table is.
        read: What must be read.
        pruned: How many files need not be read.
        index_bytes: Size of the index chunks that were read to know it.
        delta_version: Version of the table, -1 where there is none yet.
        lanes: Lane to the last queue sequence that the table has taken.
    """

    location: TableLocation
    read: tuple[Segment, ...] = ()
    pruned: int = 0
    index_bytes: int = 0
    delta_version: int = -1
    lanes: Mapping[int, int]

    @property
    def size_bytes(self) -> int:
        """Bytes of the files to read, and of the index that chose them."""
        return self.index_bytes + sum(segment.size_bytes for segment in self.read)


def find_table(store_url: str, table: Table) -> DeltaTable | None:
    """Opens a table's newest state; None where nothing was ingested yet.

    Raises:
        LakeRefused: Something else stands there, a column is missing or of another type, or it has
            a feature under which the files alone do not say what is in it.
    """
    location = lake_location(store_url, table.name)
    try:
        opened = DeltaTable(location.uri, storage_options=dict(location.storage_options))
    except TableNotFoundError:
        _refuse_occupied(location)
        return None
    except (DeltaError, OSError) as error:
        if location.is_local and not Path(location.uri).is_dir():
            _refuse_occupied(location)
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LakeRefused(location.uri, f"it cannot be opened: {reason}") from error
    _check_features(location, opened)
    _check_schema(location, table, opened)
    return opened


def _refuse_occupied(location: TableLocation) -> None:
    place = Path(location.uri)
    if location.is_local and place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise LakeRefused(location.uri, "this path is not a Delta table: move it away")


def _check_features(location: TableLocation, opened: DeltaTable) -> None:
    protocol = opened.protocol()
    features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for feature in sorted(features & REFUSED_FEATURES):
        reason = f"its feature {feature} must be off, its files alone would lie: rewrite it without"
        raise LakeRefused(location.uri, reason)


def _check_schema(location: TableLocation, table: Table, opened: DeltaTable) -> None:
    have = {field.name: _type_name(field.type) for field in opened.schema().fields}
    for column in table.columns:
        found = have.get(column.name, "nothing")
        if found != column.type.value:
            reason = f"column {column.name} must be {column.type.value}, is {found}"
            raise LakeRefused(location.uri, f"{reason}: it is of another version")
    if opened.metadata().partition_columns != [table.partition_column]:
        raise LakeRefused(location.uri, f"it must be partitioned by {table.partition_column}")


def _type_name(kind: Any) -> str:  # noqa: ANN401 - delta-rs's type, which is not typed here
    inner = getattr(kind, "key_type", None)
    if inner is not None:
        return f"map<{_type_name(inner)},{_type_name(kind.value_type)}>"
    return str(getattr(kind, "type", kind))


def select_segments(store_url: str, table: Table, query: Query, lanes: Iterable[int]) -> Segments:
    """Gives the files of a record table that may hold records of a query.

    Args:
        store_url: The store.
        table: A record table.
        query: The question.
        lanes: Lanes of the queue, whose positions are read from the same state of the table.

    Raises:
        LakeRefused: As `find_table`.
    """
    location = lake_location(store_url, table.name)
    opened = find_table(store_url, table)
    if opened is None:
        return Segments(location=location, lanes={})
    rows = _add_actions(opened)
    read = tuple(_segment(location, row) for row in rows if _may_hold(row, query))
    return Segments(
        location=location,
        read=read,
        pruned=len(rows) - len(read),
        delta_version=opened.version(),
        lanes={lane: opened.transaction_version(ingest_app_id(lane)) or 0 for lane in lanes},
    )


def select_hours(
    store_url: str, table: Table, wanted: Callable[[str], bool]
) -> tuple[Segment, ...]:
    """Gives the files of a table that is partitioned by accepted hour, for the wanted hours.

    Raises:
        LakeRefused: As `find_table`.
    """
    location = lake_location(store_url, table.name)
    opened = find_table(store_url, table)
    if opened is None:
        return ()
    column = f"partition.{table.partition_column}"
    return tuple(_segment(location, row) for row in _add_actions(opened) if wanted(row[column]))


def _add_actions(opened: DeltaTable) -> list[dict[str, Any]]:
    import pyarrow as pa  # noqa: PLC0415 - slow to import, and only queries need it

    return list(pa.table(opened.get_add_actions(flatten=True)).to_pylist())


def _segment(location: TableLocation, row: Mapping[str, Any]) -> Segment:
    path = row["path"]
    place = path if "://" in path or path.startswith("/") else f"{location.uri}/{path}"
    return Segment(name=path, path=place, size_bytes=int(row["size_bytes"]))


def _may_hold(row: Mapping[str, Any], query: Query) -> bool:
    if row.get("num_records") == 0 or not _may_have_agent(row, query.agents):
        return False
    if _overlaps(row, "ts", query):
        return True
    # Records without a time of their own count by the acceptance of their batch.
    return row.get("null_count.ts") != 0 and _overlaps(row, "accepted_at", query)


def _overlaps(row: Mapping[str, Any], column: str, query: Query) -> bool:
    least, most = row.get(f"min.{column}"), row.get(f"max.{column}")
    if least is None or most is None:
        # Only a file that says that all its values are null can hold no match.
        nulls = row.get(f"null_count.{column}")
        return nulls is None or nulls != row.get("num_records")
    return _ns(least) < query.to_ns and _ns(most) + _STATS_STEP_NS > query.from_ns


def _ns(moment: datetime | str) -> int:
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (aware - _EPOCH) // _US * _NS_PER_US


def _may_have_agent(row: Mapping[str, Any], agents: tuple[str, ...]) -> bool:
    least, most = row.get("min.agent_id"), row.get("max.agent_id")
    if not agents or least is None or most is None:
        return True
    # A statistic may be cut short, the upper one then lies below its longest values.
    return any(agent >= least and (agent <= most or agent.startswith(most)) for agent in agents)
