"""What deletes change in rollups: which hours they touch, and the rows that stay as they are.

The unit is a window's length, a metric and an hour, as a chunk is. A unit that a delete may touch
is aggregated again from the points that are left. Where retention has taken points of it, that
cannot be done: there the rows that the delete names for certain go, the others stay. Retention
itself touches no rollup, because rollups are kept to outlive the points (ADR 0057).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.lake import ROLLUPS, WINDOW_DATE
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_spark.chunks import HOUR_S, WHOLE, Unit
from sluice_spark.housekeeping import is_retention, quoted
from sluice_spark.inventory import DataFile, list_files
from sluice_spark.rewriting import named_files, read_files
from sluice_spark.session import Session
from sluice_spark.tables import open_table

COLUMNS: Final = [column.name for column in ROLLUPS.columns]
_HOUR_US: Final = HOUR_S * 1_000_000
HOUR: Final = f"(unix_micros(window_start) DIV {_HOUR_US})"
_START_NS: Final = "(unix_micros(window_start) * 1000)"
_SIZE_NS: Final = f"(CASE window WHEN '1m' THEN 60 ELSE {HOUR_S} END * {NS_PER_S}L)"
UNIT: Final = ["window", "name", "hour"]


def for_rollups(records: Iterable[DeleteRecord]) -> list[DeleteRecord]:
    """Gives the deletes that rollups honour."""
    return [record for record in records if record.kind == "metrics" and not is_retention(record)]


def kept_from_ns(records: Iterable[DeleteRecord]) -> int | None:
    """Gives the time before which retention may have taken points; None without retention."""
    cuts = [record.to_unix_ns for record in records if is_retention(record)]
    return max((cut for cut in cuts if cut is not None), default=None)


def touched_condition(record: DeleteRecord) -> str:
    """Gives the condition of Spark SQL that a row of `rollups` may hold a deleted point."""
    parts = _series(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_START_NS} + {_SIZE_NS} > {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_START_NS} < {record.to_unix_ns}")
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def certain_condition(record: DeleteRecord) -> str:
    """Gives the condition that a row of `rollups` holds nothing but what a delete names."""
    parts = _series(record)
    if record.from_unix_ns is not None:
        parts.append(f"{_START_NS} >= {record.from_unix_ns}")
    if record.to_unix_ns is not None:
        parts.append(f"{_START_NS} + {_SIZE_NS} <= {record.to_unix_ns}")
    parts += [
        f"attributes[{quoted(key)}] = {quoted(value)}" for key, value in record.attributes.items()
    ]
    return f"coalesce({' AND '.join(parts) or 'true'}, false)"


def _series(record: DeleteRecord) -> list[str]:
    parts = []
    if record.agent_id is not None:
        parts.append(f"agent_id = {quoted(record.agent_id)}")
    if record.contains is not None:
        parts.append(f"name = {quoted(record.contains)}")
    return parts


def _any(conditions: Iterable[str]) -> str:
    return f"({' OR '.join(conditions)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """What a cover does again.

    Attributes:
        units: DataFrame of the touched units: window, name, hour, and whether all points of it
            are `intact`; it is kept by Spark until `close`.
        files: Data files of `rollups` that hold a row of them; they are replaced.
        rows: DataFrame of the rows of these files that stay, each with `whole`.
    """

    units: Any
    files: tuple[DataFile, ...]
    rows: Any

    def chunks(self) -> Iterator[Unit]:
        """Gives the units one by one; they need not fit into memory."""
        for one in self.units.toLocalIterator():
            yield Unit(window=one.window, name=one.name, hour_ns=UnixNs(one.hour * _HOUR_US * 1000))

    def close(self) -> None:
        """Lets Spark forget the units."""
        self.units.unpersist()


def plan_revision(
    spark: Session,
    store_url: str,
    fresh: Sequence[DeleteRecord],
    kept_ns: int | None,
) -> Revision | None:
    """Gives what deletes that no cover honoured so far change; None when it is nothing.

    Args:
        spark: The session.
        store_url: The store.
        fresh: These deletes.
        kept_ns: Points before it may be gone by retention.

    Raises:
        TableRefused: The table is not ours.
    """
    files = list_files(open_table(store_url, ROLLUPS), ROLLUPS)
    if not fresh or not files:
        return None
    rows = read_files(spark, store_url, ROLLUPS, files).selectExpr("*", f"{HOUR} AS hour")
    intact = "true" if kept_ns is None else f"hour * {_HOUR_US} * 1000L >= {kept_ns}"
    touched = rows.where(_any(map(touched_condition, fresh)))
    units = touched.selectExpr(*UNIT, f"{intact} AS intact").distinct().persist()
    if units.isEmpty():
        units.unpersist()
        return None
    held = named_files(files, rows.join(units, UNIT, "left_semi").select("file").distinct())
    return Revision(
        units=units,
        files=tuple(held),
        rows=_staying(read_files(spark, store_url, ROLLUPS, held), units, fresh),
    )


def _staying(rows: Any, units: Any, fresh: Sequence[DeleteRecord]) -> Any:  # noqa: ANN401
    placed = rows.selectExpr("*", f"{HOUR} AS hour").join(units, UNIT, "left")
    certain = _any(map(certain_condition, fresh))
    kept = placed.where(f"intact IS NULL OR (NOT intact AND NOT {certain})")
    return kept.selectExpr(
        *(name for name in COLUMNS if name != WINDOW_DATE),
        f"to_date(window_start) AS {WINDOW_DATE}",
        f"intact IS NOT NULL AS {WHOLE}",
    )
