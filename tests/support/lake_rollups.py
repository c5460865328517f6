"""Rollups of a real table `metrics`, written by the rules of the rollup job and without a JVM."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from deltalake import CommitProperties, Transaction, write_deltalake
from support.query_rollups import RollupJob, Sample, rollups_table
from support.spark_lake import Deployment

from sluice_lake.delta import find_table, open_or_create_table
from sluice_lake.lane_versions import read_lane_versions
from sluice_lake.locations import lake_location
from sluice_lake.source_ranges import ROLLUP_APP, DeleteIds, SourceRange, source_range_key
from sluice_lake.tables import METRICS, ROLLUPS, WINDOW_DATE
from sluice_protocol.manifests import encode_record
from sluice_store import open_store
from sluice_store.stored_deletes import read_all_deletes


def _sample(row: dict[str, Any]) -> Sample:
    return Sample(
        agent=row["agent_id"],
        seq=row["seq"],
        ts_ns=row["ts_ns"],
        value=row["value"],
        sequence=row["queue_sequence"],
        accepted_ns=int(row["accepted_at"].timestamp()) * 10**9,
        name=row["name"],
        attributes=tuple(row["attributes"] or ()),
        resource=tuple(row["resource"] or ()),
    )


@dataclass(kw_only=True)
class LakeRollups:
    """The rollup job of one deployment."""

    place: Deployment
    job: RollupJob = field(default_factory=RollupJob)

    def run(self, *, crash: bool = False) -> None:
        """Add one source range; with `crash` it is only created, and no row is committed."""
        opened = find_table(self.place.url, METRICS)
        assert opened is not None
        samples = [_sample(row) for row in opened.to_pyarrow_table().to_pylist()]
        location = lake_location(self.place.url, METRICS.name)
        ends = read_lane_versions(location, opened, range(self.place.lanes))
        deletes = asyncio.run(self._start(ends, opened.version()))
        if crash:
            return
        self.job.run(samples, ends, deletes)
        self._commit()

    async def _start(self, ends: dict[int, int], version: int) -> list[Any]:
        async with open_store(self.place.url) as store:
            deletes = await read_all_deletes(store)
            source = SourceRange(
                number=self.job.number + 1,
                after={str(lane): end for lane, end in self.job.through.items()},
                through={str(lane): end for lane, end in ends.items()},
                deletes=DeleteIds(
                    listed=tuple(sorted(self.job.deletes.union(one.delete_id for one in deletes)))
                ),
                metrics_version=version,
            )
            await store.create(source_range_key(source.number), encode_record(source))
            return deletes

    def _commit(self) -> None:
        rows = rollups_table(self.job.rows)
        dates = rows.column("window_start").cast("date32")
        write_deltalake(
            open_or_create_table(self.place.url, ROLLUPS),
            rows.append_column(WINDOW_DATE, dates),
            mode="overwrite",
            commit_properties=CommitProperties(
                app_transactions=[Transaction(ROLLUP_APP, self.job.number)]
            ),
        )
