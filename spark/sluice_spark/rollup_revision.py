"""How deletes change rollups: the affected hours, and the rows that remain.

As for chunks, the unit is a window length, a metric and an hour. A unit that a delete may affect is
aggregated again from the remaining points. If retention has already removed points of the unit,
that is impossible: the rows of which every point is deleted are removed, and the others remain.
Retention itself does not change rollups, because rollups are kept longer than points (ADR 0057).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delta import open_or_create_table
from sluice_lake.tables import ROLLUPS, WINDOW_DATE
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_spark.delete_conditions import (
    any_of,
    certain_condition,
    touched_condition,
)
from sluice_spark.file_selection import may_contain_agent
from sluice_spark.rewrite import files_with_rows, read_files
from sluice_spark.rollup_objects import HOUR_S, WHOLE, RollupUnit
from sluice_spark.session import Session

COLUMNS: Final = [column.name for column in ROLLUPS.columns]
_DAY_NS: Final = 24 * HOUR_S * NS_PER_S
_HOUR_US: Final = HOUR_S * 1_000_000
HOUR: Final = f"(unix_micros(window_start) DIV {_HOUR_US})"
UNIT: Final = ["window", "name", "hour"]


def _may_contain_touched(file: DataFile, record: DeleteRecord) -> bool:
    """Return True if a data file of `rollups` may contain rows that a delete affects."""
    day_ns = datetime.fromisoformat(file.partition).replace(tzinfo=UTC).timestamp() * NS_PER_S
    return (
        (record.from_unix_ns is None or day_ns + _DAY_NS > record.from_unix_ns)
        and (record.to_unix_ns is None or day_ns < record.to_unix_ns)
        and (record.agent_id is None or may_contain_agent(file, record.agent_id))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRevision:
    """What a source range aggregates again.

    Attributes:
        units: DataFrame of the affected units: window, name, hour, and whether all points of it are
            `intact`; Spark caches it until `close`.
        files: Data files of `rollups` that contain rows of them; these files are replaced.
        rows: DataFrame of the rows of these files that remain, each with the column `whole`.
    """

    units: Any
    files: tuple[DataFile, ...]
    rows: Any

    def chunks(self) -> Iterator[RollupUnit]:
        """Yield the units one at a time, because they may not fit into memory."""
        for one in self.units.toLocalIterator():
            yield RollupUnit(
                window=one.window, name=one.name, hour_ns=UnixNs(one.hour * _HOUR_US * 1000)
            )

    def intact_hours(self) -> list[int]:
        """Return the hours since 1970 that are aggregated again from their points, sorted."""
        found = self.units.where("intact").select("hour").distinct().collect()
        return sorted(one.hour for one in found)

    def close(self) -> None:
        """Release the cached units."""
        self.units.unpersist()


def plan_revision(
    spark: Session,
    store_url: str,
    new_deletes: Sequence[DeleteRecord],
    retention_cut_ns: int | None,
) -> RollupRevision | None:
    """Return the changes by deletes that no source range lists yet; None if there are none.

    Args:
        spark: The session.
        store_url: The store.
        new_deletes: The deletes.
        retention_cut_ns: Retention may have removed points before this time, Unix ns.

    Raises:
        TableRefused: The table has another schema or a refused feature.
    """
    if not new_deletes:
        return None
    files = [
        file
        for file in list_files(open_or_create_table(store_url, ROLLUPS), ROLLUPS)
        if any(_may_contain_touched(file, one) for one in new_deletes)
    ]
    if not files:
        return None
    rows = read_files(spark, store_url, ROLLUPS, files).selectExpr("*", f"{HOUR} AS hour")
    intact = (
        "true" if retention_cut_ns is None else f"hour * {_HOUR_US} * 1000L >= {retention_cut_ns}"
    )
    touched = rows.where(any_of([touched_condition(one) for one in new_deletes]))
    units = touched.selectExpr(*UNIT, f"{intact} AS intact").distinct().persist()
    if units.isEmpty():
        units.unpersist()
        return None
    touched_files = files_with_rows(
        files, rows.join(units, UNIT, "left_semi").select("file").distinct()
    )
    return RollupRevision(
        units=units,
        files=tuple(touched_files),
        rows=_remaining_rows(
            read_files(spark, store_url, ROLLUPS, touched_files), units, new_deletes
        ),
    )


def _remaining_rows(rows: Any, units: Any, new_deletes: Sequence[DeleteRecord]) -> Any:  # noqa: ANN401
    placed = rows.selectExpr("*", f"{HOUR} AS hour").join(units, UNIT, "left")
    certain = any_of([certain_condition(one) for one in new_deletes])
    kept = placed.where(f"intact IS NULL OR (NOT intact AND NOT {certain})")
    return kept.selectExpr(
        *(name for name in COLUMNS if name != WINDOW_DATE),
        f"to_date(window_start) AS {WINDOW_DATE}",
        f"intact IS NOT NULL AS {WHOLE}",
    )
