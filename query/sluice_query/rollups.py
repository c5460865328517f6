"""Rollups that a query uses: the state of their table, the source range of that state, the files.

The number of the source range is read from the same state of the table as the files. The rollup job
creates the object of a source range before it commits the rows, so the newest object may describe
rows that do not exist yet.

The rows are read before the samples. Every sample of the rows is then also in the later state of
the samples, and a sample that is in neither is pending.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from deltalake import DeltaTable

from sluice_lake.data_files import DataFile, list_files
from sluice_lake.delete_ids import DeleteIdsReader
from sluice_lake.delta import find_table
from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.log_errors import read_transaction
from sluice_lake.source_ranges import ROLLUP_APP, SourceRange, read_source_range
from sluice_lake.tables import ROLLUPS
from sluice_protocol.active_deletes import rollup_deletes
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.pruning import SelectedFiles, may_have_agent
from sluice_query.request import Query
from sluice_query.rollup_plan import (
    MINUTE_NS,
    RollupCoverage,
    RollupPlan,
    SampleFiles,
    TimeSpan,
    begins_before_retention,
    divide_files,
    plan_rollups,
)
from sluice_store.port import ObjectStore

_WITHOUT_RESOURCES: Final = (
    "attributes of resources are not compared where retention removed samples: rollups contain only"
    " those of the records"
)
_RAW: Final = (
    "retention removed samples at the beginning of the time range: omit `raw` to compute these"
    " steps from rollups"
)
_NOT_ROLLED_UP: Final = (
    "retention hides samples that rollups do not contain yet: run `sluice spark rollup`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRollups:
    """One state of the table `rollups`.

    Attributes:
        location: The table.
        number: The last source range that this state contains.
        files: Its data files that the time range and the agents of the query may need.
        pruned: Number of its other files.
    """

    location: TableLocation
    number: int
    files: tuple[DataFile, ...]
    pruned: int

    def files_of(self, spans: Sequence[TimeSpan]) -> tuple[DataFile, ...]:
        """Return the files that may contain rows of some times."""
        days = [(_date(one.from_ns), _date(one.to_ns - 1)) for one in spans]
        return tuple(
            file
            for file in self.files
            if any(first <= file.partition <= last for first, last in days)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenRollups:
    """The rollups that a query uses, and how.

    Attributes:
        opened: The state of the table; None if no rollups are used.
        plan: How the series is computed; None if no rollups are used.
        problems: Why rollups are missing where no samples remain, one sentence each.
    """

    opened: OpenedRollups | None = None
    plan: RollupPlan | None = None
    problems: tuple[str, ...] = ()

    def extended(self, query: Query) -> Query:
        """Return the query with the time range of the plan."""
        if self.plan is None:
            return query
        span = self.plan.span
        return replace(query, from_ns=UnixNs(span.from_ns), to_ns=UnixNs(span.to_ns))

    def over(
        self, selected: SelectedFiles, query: Query
    ) -> tuple["ChosenRollups", SelectedFiles, SampleFiles]:
        """Return what remains to be read of the rollups and of the samples.

        Args:
            selected: Files of a later state of the samples.
            query: The query.
        """
        plan = self.plan
        if plan is None:
            return self, selected, SampleFiles(every=selected.read)
        if not plan.is_within(selected.lanes):
            reason = "they contain samples of a queue that is not that of the table `metrics`"
            return (
                _unusable(reason, lost=plan.rollups_only_before_ns is not None),
                selected,
                (SampleFiles(every=selected.read)),
            )
        divided = divide_files(plan, selected.read, selected.lanes, query.agents)
        wanted = {file.path for file in (*divided.every, *divided.later)}
        read = tuple(file for file in selected.read if file.path in wanted)
        pruned = selected.pruned + len(selected.read) - len(read)
        chosen = self
        if plan.hides_samples(divided):
            chosen = replace(self, problems=(*self.problems, _NOT_ROLLED_UP))
        return chosen, replace(selected, read=read, pruned=pruned), divided


def _unusable(reason: str, *, lost: bool) -> ChosenRollups:
    if not lost:
        return ChosenRollups()
    problem = f"rollups are not used: {reason}; samples that retention removed are missing"
    return ChosenRollups(problems=(problem,))


def needs_rollups(query: Query, deletes: tuple[DeleteRecord, ...]) -> bool:
    """Return True if rollups may contribute to a query."""
    return _plan(query, RollupCoverage(through={}, deletes=_ids(deletes)), 1, deletes) is not None


def without_rollups(query: Query, deletes: tuple[DeleteRecord, ...]) -> tuple[str, ...]:
    """Return why a series is incomplete that is computed from samples alone; usually nothing."""
    if query.series is None or not begins_before_retention(query, deletes):
        return ()
    return (_RAW,)


def open_rollups(store_url: str, query: Query) -> OpenedRollups | None:
    """Open the newest state of the table; return None if it contains no source range.

    Raises:
        TableRefused: The table cannot be used safely.
    """
    opened = find_table(store_url, ROLLUPS)
    number = _number(opened)
    if opened is None or not number:
        return None
    first, last = _date(query.from_ns - MINUTE_NS), _date(query.to_ns)
    files = list_files(opened, ROLLUPS)
    needed = tuple(
        file
        for file in files
        if first <= file.partition <= last and may_have_agent(file, query.agents)
    )
    return OpenedRollups(
        location=lake_location(store_url, ROLLUPS.name),
        number=number,
        files=needed,
        pruned=len(files) - len(needed),
    )


def _number(opened: DeltaTable | None) -> int:
    return 0 if opened is None else read_transaction(opened, ROLLUP_APP) or 0


def _date(at_ns: int) -> str:
    return datetime.fromtimestamp(at_ns // NS_PER_S, UTC).strftime("%Y-%m-%d")


async def choose_rollups(
    store: ObjectStore,
    opened: OpenedRollups | None,
    query: Query,
    *,
    lanes: int,
    deletes: tuple[DeleteRecord, ...],
) -> ChosenRollups:
    """Decide which rows of a state of the table a query uses.

    Args:
        store: The store.
        opened: The state of the table.
        query: The query.
        lanes: Number of lanes of the authority.
        deletes: Every delete that readers apply.

    Raises:
        StoreError: The store is unreachable.
    """
    if opened is None:
        return _unusable("there are none", lost=begins_before_retention(query, deletes))
    try:
        source = await read_source_range(store, opened.number)
        reason = f"source range {opened.number} is missing"
        honoured = await _read_honoured(store, source, deletes)
    except InvalidRecord as error:
        source, reason, honoured = None, str(error), frozenset()
    if source is None:
        plan = _plan(query, RollupCoverage(through={}, deletes=_ids(deletes)), lanes, deletes)
        return _unusable(reason, lost=plan is not None and plan.rollups_only_before_ns is not None)
    coverage = RollupCoverage(
        through={lane: source.ends(lane)[1] for lane in range(lanes)},
        deletes=honoured,
    )
    plan = _plan(query, coverage, lanes, deletes)
    if plan is None:
        return ChosenRollups()
    resources = plan.rollups_only_before_ns is not None and query.attributes
    problems = (_WITHOUT_RESOURCES,) if resources else ()
    return ChosenRollups(opened=opened, plan=plan, problems=problems)


async def _read_honoured(
    store: ObjectStore, source: SourceRange | None, deletes: Sequence[DeleteRecord]
) -> frozenset[str]:
    if source is None:
        return frozenset()
    wanted = {one.delete_id for one in rollup_deletes(deletes)}
    return await DeleteIdsReader(store=store).read(source.deletes, wanted)


def _plan(
    query: Query, coverage: RollupCoverage, lanes: int, deletes: tuple[DeleteRecord, ...]
) -> RollupPlan | None:
    if query.series is None or query.series.raw:
        return None
    return plan_rollups(query, query.series, coverage, lanes=lanes, deletes=deletes)


def _ids(deletes: tuple[DeleteRecord, ...]) -> frozenset[str]:
    return frozenset(one.delete_id for one in deletes)
