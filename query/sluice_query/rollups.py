"""Rollups that a query uses: which part of a series they compute, and the state of their table.

A row of `rollups` contains the samples of one series in one minute or hour, as far as the queue
sequences of its source range go. A plan divides the time range of a query:

- In *windows*, whole minutes or hours, the rows of `rollups` are used, and of the samples only
  those whose queue sequence is later than the source range.
- In all other spans every sample is used and no row of `rollups`.

Every sample is therefore counted once. Windows are used only where their rows contain exactly the
samples that a query over samples would find. Where retention has removed the samples, they are used
in any case, because nothing else remains. ADR 34 states the rules and their reasons.

The number of the source range is read from the same state of the table as the files. The rollup job
creates the object of a source range before it commits the rows, so the newest object may describe
rows that do not exist yet.

The rows are read before the samples. Every sample of the rows is then also in the later state of
the samples, and a sample that is in neither is pending.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from deltalake import DeltaTable

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, list_files
from sluice_lake.delta import find_table
from sluice_lake.errors import read_transaction
from sluice_lake.locations import TableLocation, lake_location
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIdsReader, SourceRange, read_source_range
from sluice_lake.tables import ROLLUPS
from sluice_protocol.authority import LaneCounts
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import lane_of
from sluice_protocol.record_deletes import DeleteRecord, retention_cut_ns, rollup_deletes
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.pruning import SelectedFiles, may_have_agent
from sluice_query.request import FIRST_NS, LOOKBACK_NS, Aggregate, Query, Series
from sluice_store.port import ObjectStore

MINUTE_NS: Final = 60 * NS_PER_S
HOUR_NS: Final = 3600 * NS_PER_S
SPANS_MAX: Final = 50
"""Most spans of a plan. Many deletes that rollups do not honour yet could cause more of them."""


class TimeSpan(NamedTuple):
    """A range of times, Unix ns; the end is exclusive."""

    from_ns: int
    to_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupCoverage:
    """What one state of the table `rollups` contains.

    `through` maps a lane to the last queue sequence whose samples are in the rows, 0 if not named.
    `deletes` are the ids of the deletes that the rows honour.
    """

    through: Mapping[int, int]
    deletes: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupPlan:
    """How one series is computed.

    Attributes:
        samples: Spans in which every sample is used.
        through: The last queue sequence of each lane that the rows contain, by lane.
        rollups_only_before_ns: Time before which retention may have removed the samples, if it is
            in the range of the query.
        dropped: Deletes that the rows do not honour yet. Rows that one of them covers completely
            are not used.
    """

    minutes: tuple[TimeSpan, ...]
    hours: tuple[TimeSpan, ...]
    samples: tuple[TimeSpan, ...]
    lanes: LaneCounts
    through: tuple[int, ...]
    rollups_only_before_ns: int | None = None
    dropped: tuple[DeleteRecord, ...] = ()

    @property
    def windows(self) -> list[TimeSpan]:
        """The spans in which rows of `rollups` are used."""
        return merge_spans([*self.minutes, *self.hours])

    @property
    def span(self) -> TimeSpan:
        """The time range; where samples are removed, it is extended to whole minutes."""
        spans = [*self.windows, *self.samples]
        return TimeSpan(min(one.from_ns for one in spans), max(one.to_ns for one in spans))

    def is_within(self, lanes: Mapping[int, int]) -> bool:
        """Return True if a later state of the samples contains every sequence of the rows.

        `lanes` maps a lane to the last sequence that the samples contain.
        """
        return all(lanes.get(lane, 0) >= end for lane, end in enumerate(self.through))

    def hides_samples(self, files: "SampleFiles") -> bool:
        """Return True if retention may hide samples in `files` that the rows do not contain."""
        if self.rollups_only_before_ns is None:
            return False
        lost = TimeSpan(self.span.from_ns, self.rollups_only_before_ns)
        return any(_overlaps(file, [lost]) for file in files.later)

    def later_lanes(self, lanes: Mapping[int, int], agents: Sequence[str]) -> frozenset[int]:
        """Return the lanes with samples that the rows do not contain and the query may need.

        `lanes` maps a lane to the last sequence that the samples contain; empty `agents` mean all.
        """
        later = {lane for lane, end in enumerate(self.through) if lanes.get(lane, 0) > end}
        if agents:
            later &= {lane_of(agent, lanes) for agent in agents for lanes in self.lanes.each}
        return frozenset(later)


def plan_rollups(
    query: Query,
    series: Series,
    coverage: RollupCoverage,
    *,
    lanes: LaneCounts,
    deletes: Sequence[DeleteRecord],
) -> RollupPlan | None:
    """Return how to compute a series, or None if rollups contribute nothing to it.

    `deletes` are all that readers apply.
    """
    if _needs_samples(query, series):
        return None
    cut_ns = retention_cut_ns(deletes)
    lost = _lost_span(query, cut_ns)
    rest = TimeSpan(max(query.from_ns, lost.to_ns) if lost else query.from_ns, query.to_ns)
    pending = _not_honoured(query, series, coverage, deletes)
    exact: list[TimeSpan] = []
    if answers_exactly(query, series):
        exact = subtract_spans([rest], _inexact_spans(cut_ns, pending))
        exact = whole_windows(exact, MINUTE_NS)
        if len(exact) > SPANS_MAX:
            exact = []
    windows = merge_spans([*([lost] if lost else []), *exact])
    if not windows:
        return None
    by_hours = series.step_ns % HOUR_NS == 0
    hours = whole_windows([*([lost] if lost else []), *exact], HOUR_NS) if by_hours else []
    return RollupPlan(
        minutes=tuple(subtract_spans(windows, hours)),
        hours=tuple(hours),
        samples=tuple(subtract_spans([rest], exact)),
        lanes=lanes,
        through=tuple(coverage.through.get(lane, 0) for lane in range(lanes.most)),
        rollups_only_before_ns=lost.to_ns if lost else None,
        dropped=tuple(pending) if lost else (),
    )


def begins_before_retention(query: Query, deletes: Sequence[DeleteRecord]) -> bool:
    """Return True if retention may have removed samples of the time range."""
    return _lost_span(query, retention_cut_ns(deletes)) is not None


def answers_exactly(query: Query, series: Series) -> bool:
    """Return True if rows of minutes answer a query as samples do.

    A row has the attributes of its series and not those of the resource of a batch. A step must
    consist of whole minutes.
    """
    return not query.attributes and series.step_ns % MINUTE_NS == 0


def _lost_span(query: Query, cut_ns: int | None) -> TimeSpan | None:
    """Return the part of the range, in whole minutes, whose samples retention may have removed."""
    if cut_ns is None or cut_ns <= query.from_ns:
        return None
    end_ns = min(_ceil(cut_ns, MINUTE_NS), _ceil(query.to_ns, MINUTE_NS))
    return TimeSpan(_floor(query.from_ns, MINUTE_NS), end_ns)


def _not_honoured(
    query: Query, series: Series, coverage: RollupCoverage, deletes: Sequence[DeleteRecord]
) -> list[DeleteRecord]:
    """Return the deletes that the rows do not honour yet and that may affect the series."""
    return [
        one
        for one in rollup_deletes(deletes)
        if one.delete_id not in coverage.deletes
        and (one.contains is None or one.contains == series.metric)
        and (one.agent_id is None or not query.agents or one.agent_id in query.agents)
    ]


def _inexact_spans(cut_ns: int | None, pending: Iterable[DeleteRecord]) -> list[TimeSpan]:
    """Return the spans, of any length, in which a row may differ from its samples.

    The rollup job aggregates an hour again only if retention removed none of its samples. Other
    hours may still contain deleted samples, so the hour of the cut is computed from samples.
    """
    spans = [
        TimeSpan(
            _EARLIEST_NS if one.from_unix_ns is None else one.from_unix_ns,
            _LATEST_NS if one.to_unix_ns is None else one.to_unix_ns,
        )
        for one in pending
    ]
    if cut_ns is not None:
        spans.append(TimeSpan(_EARLIEST_NS, _ceil(cut_ns, HOUR_NS)))
    return spans


_EARLIEST_NS: Final = -(2**64)
_LATEST_NS: Final = 2**64


def merge_spans(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """Return the same times as sorted spans that neither overlap nor touch."""
    merged: list[TimeSpan] = []
    for span in sorted(span for span in spans if span.from_ns < span.to_ns):
        if merged and span.from_ns <= merged[-1].to_ns:
            last = merged.pop()
            merged.append(TimeSpan(last.from_ns, max(last.to_ns, span.to_ns)))
        else:
            merged.append(span)
    return merged


def subtract_spans(spans: Iterable[TimeSpan], removed: Iterable[TimeSpan]) -> list[TimeSpan]:
    """Return the times of `spans` that are not in `removed`, as sorted spans."""
    left: list[TimeSpan] = []
    gone = merge_spans(removed)
    for span in merge_spans(spans):
        start_ns = span.from_ns
        for hole in gone:
            if hole.to_ns <= start_ns or hole.from_ns >= span.to_ns:
                continue
            if hole.from_ns > start_ns:
                left.append(TimeSpan(start_ns, hole.from_ns))
            start_ns = hole.to_ns
        if start_ns < span.to_ns:
            left.append(TimeSpan(start_ns, span.to_ns))
    return left


def whole_windows(spans: Iterable[TimeSpan], width_ns: int) -> list[TimeSpan]:
    """Return the part of each span that consists of whole windows."""
    inner = (
        TimeSpan(_ceil(one.from_ns, width_ns), _floor(one.to_ns, width_ns))
        for one in merge_spans(spans)
    )
    return [one for one in inner if one.from_ns < one.to_ns]


def _floor(at_ns: int, width_ns: int) -> int:
    return at_ns - at_ns % width_ns


def _ceil(at_ns: int, width_ns: int) -> int:
    return -(-at_ns // width_ns) * width_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFiles:
    """The data files of samples that a plan needs; a file may be in both parts.

    In the spans of `every`, all samples are used; `later` has samples later than the rows of
    `rollups`.
    """

    every: tuple[DataFile, ...] = ()
    later: tuple[DataFile, ...] = ()


def divide_files(
    plan: RollupPlan, files: Sequence[DataFile], lanes: Mapping[int, int], agents: Sequence[str]
) -> SampleFiles:
    """Return the data files that a plan needs, by their statistics.

    `lanes` maps a lane to the last sequence that this state of the table contains; empty `agents`
    mean all.
    """
    later = {lane: (plan.through[lane], lanes[lane]) for lane in plan.later_lanes(lanes, agents)}
    return SampleFiles(
        every=tuple(one for one in files if _overlaps(one, plan.samples)),
        later=tuple(
            one for one in files if _is_later(one, later.values()) and _overlaps(one, plan.windows)
        ),
    )


def _overlaps(file: DataFile, spans: Sequence[TimeSpan]) -> bool:
    if not spans or file.ts.range_ns is None:
        return bool(spans)
    earliest, latest = file.ts.range_ns
    return any(earliest < one.to_ns and latest + STATS_SLACK_NS > one.from_ns for one in spans)


def _is_later(file: DataFile, later: Collection[tuple[int, int]]) -> bool:
    if not later or file.sequences is None:
        return bool(later)
    first, last = file.sequences
    return any(first <= through and last > after for after, through in later)


_WITHOUT_RESOURCES: Final = (
    "attributes of resources are not compared where retention removed samples: rollups contain only"
    " those of the records"
)
_REMOVED: Final = "retention removed samples at the beginning of the time range"
_NOT_ROLLED_UP: Final = (
    "retention hides samples that rollups do not contain yet: run `sluice spark rollup`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRollups:
    """One state of the table `rollups`: its last source range, and the files a query may need."""

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
    """The rollups that a series uses, and how; without any, `opened` and `plan` are None.

    `problems` has the reasons, a sentence each, why rollups are missing where no samples remain.
    `samples` are the files of samples that a plan needs, after their table was read.
    """

    opened: OpenedRollups | None = None
    plan: RollupPlan | None = None
    problems: tuple[str, ...] = ()
    samples: SampleFiles = SampleFiles()

    def extended(self, query: Query) -> Query:
        """Return the query with the time range of the plan, or what a rate needs before it."""
        if self.plan is None:
            series = query.series
            if series is None or series.aggregate is not Aggregate.RATE:
                return query
            return replace(query, from_ns=UnixNs(max(query.from_ns - LOOKBACK_NS, FIRST_NS)))
        span = self.plan.span
        return replace(query, from_ns=UnixNs(span.from_ns), to_ns=UnixNs(span.to_ns))

    def over(self, selected: SelectedFiles, query: Query) -> tuple["ChosenRollups", SelectedFiles]:
        """Return what remains to be read of the rollups and of the samples.

        `selected` has files of a later state of the samples.
        """
        plan = self.plan
        if plan is None:
            return self, selected
        if not plan.is_within(selected.lanes):
            reason = "they contain samples of a queue that is not that of the table `metrics`"
            return _unusable(reason, lost=plan.rollups_only_before_ns is not None), selected
        divided = divide_files(plan, selected.read, selected.lanes, query.agents)
        wanted = {file.path for file in (*divided.every, *divided.later)}
        read = tuple(file for file in selected.read if file.path in wanted)
        pruned = selected.pruned + len(selected.read) - len(read)
        late = (_NOT_ROLLED_UP,) if plan.hides_samples(divided) else ()
        chosen = replace(self, samples=divided, problems=(*self.problems, *late))
        return chosen, replace(selected, read=read, pruned=pruned)

    def without(self, gone: Collection[str]) -> "ChosenRollups":
        """Return the same without some files, given by their paths."""
        opened = self.opened
        if opened is not None:
            kept = tuple(one for one in opened.files if one.path not in gone)
            opened = replace(opened, files=kept)
        samples = SampleFiles(
            every=tuple(one for one in self.samples.every if one.path not in gone),
            later=tuple(one for one in self.samples.later if one.path not in gone),
        )
        return replace(self, opened=opened, samples=samples)


def _unusable(reason: str, *, lost: bool) -> ChosenRollups:
    if not lost:
        return ChosenRollups()
    problem = f"rollups are not used: {reason}; samples that retention removed are missing"
    return ChosenRollups(problems=(problem,))


def needs_rollups(query: Query, deletes: tuple[DeleteRecord, ...]) -> bool:
    """Return True if rollups may contribute to a query."""
    nothing = RollupCoverage(through={}, deletes=_ids(deletes))
    return _plan(query, nothing, LaneCounts(lanes=1), deletes) is not None


def without_rollups(query: Query, deletes: tuple[DeleteRecord, ...]) -> tuple[str, ...]:
    """Return why a series computed from samples alone is incomplete; usually nothing."""
    if query.series is None or query.kind != "metrics":
        return ()
    if not begins_before_retention(query, deletes):
        return ()
    reason = _needs_samples(query, query.series) or "no queue exists"
    return (f"{_REMOVED}: {reason}",)


def _needs_samples(query: Query, series: Series) -> str:
    """Return why rollups cannot replace samples of a series; empty if they can."""
    if series.raw:
        return "omit `raw` to compute these steps from rollups"
    if series.aggregate.quantile is not None or series.aggregate is Aggregate.RATE:
        return f"`{series.aggregate}` is computed from samples only"
    if series.each:
        return "rollups do not contain resources: omit `each`"
    known = len(query.attributes) + len(query.agents)
    if query.filters or (query.pipeline is not None and len(query.pipeline.matchers) > known):
        return "rollups contain attributes and agents: select others in samples only"
    in_rows = ("agent_id", "name", "attributes")
    others = [one.name for one in series.by if one.column not in in_rows]
    return f"rollups are not divided by `{others[0]}`" if others else ""


def open_rollups(store_url: str, query: Query) -> OpenedRollups | None:
    """Open the newest state of the table; return None if it contains no source range."""
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
    lanes: LaneCounts,
    deletes: tuple[DeleteRecord, ...],
) -> ChosenRollups:
    """Decide which rows of a state of the table a query uses.

    `deletes` are all that readers apply.
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
        through={lane: source.ends(lane)[1] for lane in range(lanes.most)},
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
    query: Query, coverage: RollupCoverage, lanes: LaneCounts, deletes: tuple[DeleteRecord, ...]
) -> RollupPlan | None:
    if query.series is None:
        return None
    return plan_rollups(query, query.series, coverage, lanes=lanes, deletes=deletes)


def _ids(deletes: tuple[DeleteRecord, ...]) -> frozenset[str]:
    return frozenset(one.delete_id for one in deletes)
