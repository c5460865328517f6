"""Computation of a series by the engine, from samples, pending batches and rollups."""

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from sluice_lake.locations import TableLocation
from sluice_protocol.record_deletes import DeleteRecord
from sluice_query.engine import LAKE, PENDING, QueryEngine
from sluice_query.request import Query, Series
from sluice_query.result import SeriesPoint
from sluice_query.rollup_plan import SampleFiles
from sluice_query.rollups import ChosenRollups
from sluice_query.series_sql import SampleSource, SeriesSources, series_sql

_LATER: Final = "later"
_MINUTES: Final = "minutes"
_HOURS: Final = "hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesInput:
    """What a series is computed from.

    Attributes:
        query: The query, with the time range of the plan.
        location: The table `metrics`.
        samples: Its files.
        pending: Samples that are in no table yet.
        deletes: Deletes that hide some of the samples.
        rollups: The rollups to use.
    """

    query: Query
    location: TableLocation
    samples: SampleFiles
    pending: tuple[pa.Table, ...]
    deletes: tuple[DeleteRecord, ...]
    rollups: ChosenRollups


def compute_series(engine: QueryEngine, series: Series, given: SeriesInput) -> list[SeriesPoint]:
    """Return the points of a series in order.

    Raises:
        TableRefused: A file cannot be read.
        QueryTooLarge: The memory limit is exceeded in spite of spilling to disk.
    """
    plan, opened = given.rollups.plan, given.rollups.opened
    samples: list[SampleSource] = []
    if given.samples.every:
        engine.register_files(LAKE, given.samples.every, given.location)
        samples.append(SampleSource(name=LAKE, spans=plan.samples if plan is not None else None))
    if plan is not None and given.samples.later:
        engine.register_files(_LATER, given.samples.later, given.location)
        windows = tuple(plan.windows)
        samples.append(SampleSource(name=_LATER, spans=windows, later_than=plan.through))
    if given.pending:
        engine.register_table(PENDING, pa.concat_tables(given.pending))
        samples.append(SampleSource(name=PENDING))
    rows: dict[str, str] = {}
    if plan is not None and opened is not None:
        for name, spans in ((_MINUTES, plan.minutes), (_HOURS, plan.hours)):
            if files := opened.files_of(spans):
                engine.register_files(name, files, opened.location)
                rows[name] = name
    if not samples and not rows:
        return []
    sources = SeriesSources(
        samples=tuple(samples),
        deletes=given.deletes,
        minutes=rows.get(_MINUTES),
        hours=rows.get(_HOURS),
        plan=plan,
    )
    found = engine.rows(series_sql(given.query, series, sources))
    return [SeriesPoint(step_ns=row[0], agent_id=row[1], value=row[2]) for row in found]
