"""What a source range of rollups depends on: its ends, its deletes, and files with its points.

The order of reading matters. Hours are aggregated again from all of their points, so no retention
may have removed some of them. The files are therefore listed before the deletes are read: a
retention that removed rows from the listed files was created before the listing, and is read.

A run reads the files that were added since the previous range, not the whole table. The previous
range names a version of the table that contains no later row. Every file of that version is
therefore without points of this range, whatever compaction did since. Retention waits for the
files with samples that no rollup contains yet. Otherwise samples that arrive late, or that are
older than a rollup job that was stopped, would be lost without a trace.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, list_files
from sluice_lake.delta import find_table, list_paths_at, open_or_create_table, read_lane_versions
from sluice_lake.errors import read_transaction
from sluice_lake.locations import lake_location
from sluice_lake.source_ranges import (
    ROLLUP_APP,
    DeleteIdsReader,
    SourceRange,
    read_source_range,
    source_range_key,
)
from sluice_lake.tables import METRICS, ROLLUPS
from sluice_protocol.authority import LaneCounts
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.record_deletes import (
    DeleteRecord,
    delete_key,
    needed_deletes,
    retention_cut_ns,
    rollup_deletes,
)
from sluice_protocol.units import NS_PER_S
from sluice_spark.compaction.deleted_rows import FileDeletes, plan_deletes
from sluice_spark.compaction.file_selection import read_maintenance_input
from sluice_spark.ingest.microbatch import open_snapshot
from sluice_spark.rollups.objects import next_source_range
from sluice_store import open_store, read_authority
from sluice_store.port import ObjectStore

_HOUR_NS: Final = 3600 * NS_PER_S


def select_point_files(
    files: Iterable[DataFile],
    source: SourceRange,
    *,
    lanes: int,
    known: Collection[str] | None,
    hours: Sequence[int] = (),
) -> list[DataFile]:
    """Return the files that may contain points of a source range or of some hours since 1970.

    `known` are the paths of a version that contains no point of this range; None if unknown.
    """
    ends = [source.ends(lane) for lane in range(lanes)]
    return [
        file
        for file in files
        if (_may_contain_later(file, ends) and (known is None or file.path not in known))
        or _may_contain_hour(file, hours)
    ]


def _may_contain_later(file: DataFile, ends: Sequence[tuple[int, int]]) -> bool:
    moved = [(after, through) for after, through in ends if through > after]
    if file.sequences is None:
        return bool(moved)
    first, last = file.sequences
    return any(first <= through and last > after for after, through in moved)


def _may_contain_hour(file: DataFile, hours: Sequence[int]) -> bool:
    if not hours or file.ts.range_ns is None:
        return bool(hours)
    earliest, latest = file.ts.range_ns
    place = bisect_left(hours, (earliest - STATS_SLACK_NS) // _HOUR_NS)
    return place < len(hours) and hours[place] <= (latest + STATS_SLACK_NS) // _HOUR_NS


def find_unrolled_files(store_url: str, files: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that may contain samples after the last source range of `rollups`.

    The files were listed before this call. Without rollups return nothing; if the source range is
    missing, every file.
    """
    rollups, metrics = find_table(store_url, ROLLUPS), find_table(store_url, METRICS)
    done = (read_transaction(rollups, ROLLUP_APP) or 0) if rollups is not None else 0
    if not done or metrics is None:
        return []
    source, counts = asyncio.run(_read(store_url, done))
    if source is None:
        return list(files)
    lanes = counts.most
    rolled = {lane: source.ends(lane)[1] for lane in range(lanes)}
    reached = read_lane_versions(lake_location(store_url, METRICS.name), metrics, range(lanes))
    known = None
    if source.metrics_version is not None:
        known = list_paths_at(store_url, METRICS, source.metrics_version, rolled)
    later = SourceRange(
        number=done + 1,
        after={str(lane): end for lane, end in rolled.items()},
        through={str(lane): end for lane, end in reached.items()},
    )
    return select_point_files(files, later, lanes=lanes, known=known)


async def _read(store_url: str, number: int) -> tuple[SourceRange | None, LaneCounts]:
    async with open_store(store_url) as store:
        source = await read_source_range(store, number)
        return source, (await read_authority(store)).lane_counts


_log = structlog.get_logger("sluice.rollup")


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupInput:
    """What a source range depends on.

    Attributes:
        lanes: The number of lanes of each point.
        deletes: The deletes that apply to the source range, as far as files still need them.
        new_deletes: Deletes that did not apply to the range before.
        retention_cut_ns: Retention may have removed points before this time from `files`; None
            without retention.
        previous: None before the first range.
    """

    lanes: LaneCounts
    files: Sequence[DataFile]
    deletes: FileDeletes
    new_deletes: tuple[DeleteRecord, ...]
    retention_cut_ns: int | None
    previous: SourceRange | None

    def deletes_of(self, files: Iterable[DataFile]) -> list[DeleteRecord]:
        """Return the deletes that may hide points of some files."""
        found = (record for file in files for record in self.deletes.touching(file))
        return list({record.delete_id: record for record in found}.values())

    def known_files(self, store_url: str) -> set[str] | None:
        """Return the paths of files without points of this range; None if unknown."""
        if self.previous is None or self.previous.metrics_version is None:
            return None
        ends = {lane: self.previous.ends(lane)[1] for lane in range(self.lanes.most)}
        found = list_paths_at(store_url, METRICS, self.previous.metrics_version, ends)
        if found is None:
            _log.info("rollup_base_version_gone", version=self.previous.metrics_version)
        return found


@dataclass(slots=True, kw_only=True)
class RollupInputReader:
    """Reads the input of the source ranges of one run.

    The deletes are read once, and again for each source range that has new ones. `parts` maps the
    digest of a part to the ids of its deletes.
    """

    store_url: str
    known: Mapping[str, DeleteRecord] | None = None
    parts: dict[str, frozenset[str]] = field(default_factory=dict)

    def next_range(self, done: int) -> SourceRange | None:
        """Return the source range after the last one of the table; None if there is none."""
        return asyncio.run(self._next_range(done))

    async def _next_range(self, done: int) -> SourceRange | None:
        snapshot = open_snapshot(self.store_url)
        async with open_store(self.store_url) as store:
            lanes = range((await read_authority(store)).lanes_ever)
            ends = snapshot.committed_through(list(lanes))
            previous = await read_source_range(store, done) if done else None
            if done and previous is None:
                raise InvalidRecord(
                    source_range_key(done),
                    "the table `rollups` contains this range, but it is missing",
                )
            deletes = rollup_deletes((await self._read_known(store)).values())
            metrics = snapshot.records["metrics"]
            location = lake_location(self.store_url, METRICS.name)
            found = read_lane_versions(location, metrics, list(lanes))
            is_ahead = any(found[lane] > ends[lane] for lane in lanes)
            return await next_source_range(
                DeleteIdsReader(store=store, known=self.parts),
                previous,
                ends,
                [one.delete_id for one in deletes],
                None if is_ahead else metrics.version(),
            )

    async def _read_known(self, store: ObjectStore) -> Mapping[str, DeleteRecord]:
        if self.known is None:
            deletes = (await read_maintenance_input(store)).deletes
            self.known = {one.delete_id: one for one in deletes}
        return self.known

    async def _read_again(self, store: ObjectStore) -> Mapping[str, DeleteRecord]:
        self.known = None
        return await self._read_known(store)

    def read_input(self, source: SourceRange) -> RollupInput:
        """Read the input of a source range, which another owner may have created."""
        files = list_files(open_or_create_table(self.store_url, METRICS), METRICS)
        lanes, previous, applied, new = asyncio.run(self._read_input(source))
        every = needed_deletes(applied)
        found = plan_deletes(self.store_url, METRICS, every)
        known = self.known or {}
        return RollupInput(
            lanes=lanes,
            files=files,
            deletes=found,
            new_deletes=tuple(new),
            retention_cut_ns=retention_cut_ns(known.values()),
            previous=previous,
        )

    async def _read_input(
        self, source: SourceRange
    ) -> tuple[LaneCounts, SourceRange | None, Sequence[DeleteRecord], Sequence[DeleteRecord]]:
        async with open_store(self.store_url) as store:
            reader = DeleteIdsReader(store=store, known=self.parts)
            ids = await reader.read(source.deletes)
            previous = await read_source_range(store, source.number - 1)
            before = await reader.read(previous.deletes) if previous is not None else ids
            known = await self._read_known(store)
            # Another owner may have read later deletes. Retention that was applied before the files
            # were listed must be known if hours are aggregated again.
            if ids - before or not known.keys() >= ids:
                known = await self._read_again(store)
            lost = sorted(ids.difference(known))
            if lost:
                raise InvalidRecord(
                    delete_key(lost[0]),
                    f"rollup source range {source.number} refers to it, but it is missing",
                )
            lanes = (await read_authority(store)).lane_counts
        ordered = sorted(ids)
        new = [known[one] for one in ordered if one not in before]
        return lanes, previous, [known[one] for one in ordered], new
