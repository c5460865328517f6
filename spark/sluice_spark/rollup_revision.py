"""What deletes change in rollups: which hours they touch, and the rows that stay as they are.

The unit is a window's length, a metric and an hour, as a chunk is. A unit that a delete may touch
is aggregated again from the points that are left. Where retention has taken points of it, that
cannot be done: there the rows that the delete names for certain go, the others stay. Retention
itself touches no rollup, because rollups are kept to outlive the points (ADR 0057).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sluice_protocol.deletes import DeleteRecord
from sluice_protocol.lake import ROLLUPS, WINDOW_DATE
from sluice_protocol.units import UnixNs
from sluice_spark.data_files import DataFile, list_files
from sluice_spark.delete_conditions import (
    certain_condition,
    touched_condition,
)
from sluice_spark.rewrite import files_with_rows, read_files
from sluice_spark.rollup_objects import HOUR_S, WHOLE, RollupUnit
from sluice_spark.session import Session
from sluice_spark.tables import open_table

COLUMNS: Final = [column.name for column in ROLLUPS.columns]
_HOUR_US: Final = HOUR_S * 1_000_000
HOUR: Final = f"(unix_micros(window_start) DIV {_HOUR_US})"
UNIT: Final = ["window", "name", "hour"]


def _any(conditions: Iterable[str]) -> str:
    return f"({' OR '.join(conditions)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupRevision:
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

    def chunks(self) -> Iterator[RollupUnit]:
        """Gives the units one by one; they need not fit into memory."""
        for one in self.units.toLocalIterator():
            yield RollupUnit(
                window=one.window, name=one.name, hour_ns=UnixNs(one.hour * _HOUR_US * 1000)
            )

    def close(self) -> None:
        """Lets Spark forget the units."""
        self.units.unpersist()


def plan_revision(
    spark: Session,
    store_url: str,
    fresh: Sequence[DeleteRecord],
    kept_ns: int | None,
) -> RollupRevision | None:
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
    held = files_with_rows(files, rows.join(units, UNIT, "left_semi").select("file").distinct())
    return RollupRevision(
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
