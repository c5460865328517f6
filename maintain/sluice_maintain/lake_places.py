"""Where a batch is in the lake, read from the ledger and from the source ranges of rollups.

The ledger is partitioned by the hour of acceptance, and its statistics select the file of an agent
and a sequence number: one small file is read, and no table of records. The source range is searched
by bisection. The tables are opened as every query opens them.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from sluice_lake.data_files import STATS_SLACK_NS, DataFile, list_files
from sluice_lake.delta import describe_older, find_table, read_positions
from sluice_lake.errors import data_errors_translated, read_transaction
from sluice_lake.locations import lake_location, open_filesystem
from sluice_lake.source_ranges import ROLLUP_APP, SourceRange, read_source_range, source_range_key
from sluice_lake.tables import BATCHES, DEAD_LETTERS, RECORD_TABLES, ROLLUPS, Table, accepted_hour
from sluice_protocol.batch_in_lake import (
    BatchInLake,
    BatchRollup,
    LakeState,
    LedgerRow,
    RolledUpTo,
    RollupSource,
    RollupState,
    decide_rollup,
    unreadable_lake,
)
from sluice_protocol.errors import InvalidRecord, SluiceError
from sluice_protocol.keys import LAKE
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.outcomes import ObjectInfo
from sluice_store.port import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeReader:
    """Reads where a batch is in the lake of one store."""

    store: ObjectStore
    store_url: str

    async def read(self, manifest: AcceptedManifest) -> BatchInLake:
        """Return where a batch is in the lake; what cannot be read is part of the result."""
        try:
            return await self._read(manifest)
        except (SluiceError, DeltaError, OSError, pa.ArrowException) as error:
            return unreadable_lake(manifest, str(error).partition("\n")[0])

    async def _read(self, manifest: AcceptedManifest) -> BatchInLake:
        row = await asyncio.to_thread(self._ledger_row, manifest)
        if row is None:
            reason = await asyncio.to_thread(self._dead_letter, manifest)
            rollup = decide_rollup(manifest, None, None, dead_letter=reason is not None)
            state = LakeState.NOT_YET if reason is None else LakeState.DEAD_LETTER
            return _place(manifest, state, rollup, problem=reason or "")
        older = await asyncio.to_thread(self._older, manifest, row)
        if older:
            return unreadable_lake(manifest, older)
        rollup = await self._rollup(manifest, row)
        return _place(manifest, LakeState.IN_LAKE, rollup, row=row)

    async def _rollup(self, manifest: AcceptedManifest, row: LedgerRow) -> BatchRollup:
        if manifest.kind != "metrics":
            return decide_rollup(manifest, row, None)
        done = await asyncio.to_thread(self._last_source_range)
        if not done:
            return decide_rollup(manifest, row, None)
        newest = await read_source_range(self.store, done)
        if newest is None:
            raise InvalidRecord(
                source_range_key(done), "the table `rollups` contains this range, but it is missing"
            )
        upto = RolledUpTo(source_range=done, through=newest.ends(row.lane)[1])
        rollup = decide_rollup(manifest, row, upto)
        if rollup.state is not RollupState.ROLLED_UP:
            return rollup
        return replace(rollup, source=await self._source(row, newest))

    async def _source(self, row: LedgerRow, newest: SourceRange) -> RollupSource | None:
        """Return the range that contains a queue entry; None if it was removed at its age."""
        low, found = 1, newest
        while low < found.number:
            middle = (low + found.number) // 2
            read = await read_source_range(self.store, middle)
            if read is not None and read.ends(row.lane)[1] >= row.sequence:
                found = read
            else:  # a removed range is older than every range that exists
                low = middle + 1
        if row.sequence <= found.ends(row.lane)[0]:
            return None
        key = source_range_key(found.number)
        info = await self.store.head(key)
        known = info if isinstance(info, ObjectInfo) else None
        return RollupSource(
            number=found.number,
            key=key,
            size_bytes=known.size_bytes if known else None,
            last_modified_unix_ns=known.last_modified_ns if known else None,
        )

    def _older(self, manifest: AcceptedManifest, row: LedgerRow) -> str:
        """Return why the records of a batch in the ledger are missing; empty if they are not."""
        table = RECORD_TABLES[manifest.kind]
        opened = find_table(self.store_url, table)
        found = read_positions(self.store_url, table, opened, [row.lane])
        return describe_older(table.name, found, {row.lane: row.sequence})

    def _last_source_range(self) -> int:
        opened = find_table(self.store_url, ROLLUPS)
        return (read_transaction(opened, ROLLUP_APP) or 0) if opened is not None else 0

    def _ledger_row(self, manifest: AcceptedManifest) -> LedgerRow | None:
        found = self._find_row(BATCHES, manifest, ("lane", "queue_sequence"))
        if found is None:
            return None
        key, size_bytes, row = found
        lane, sequence = int(row["lane"]), int(row["queue_sequence"])
        return LedgerRow(key=key, size_bytes=size_bytes, lane=lane, sequence=sequence)

    def _dead_letter(self, manifest: AcceptedManifest) -> str | None:
        found = self._find_row(DEAD_LETTERS, manifest, ("reason", "detail"))
        return None if found is None else f"{found[2]['reason']}: {found[2]['detail']}"

    def _find_row(
        self, table: Table, manifest: AcceptedManifest, columns: tuple[str, ...]
    ) -> tuple[str, int, dict[str, Any]] | None:
        """Return the key and size of the file with a batch's row, and some of its columns."""
        import pyarrow.parquet as pq  # noqa: PLC0415 - takes 0.3 s to import

        opened = find_table(self.store_url, table)
        if opened is None:
            return None
        location = lake_location(self.store_url, table.name)
        hour = accepted_hour(manifest.accepted_at_unix_ns)
        filesystem, root = open_filesystem(location)
        who = (
            (pc.field("agent_id") == manifest.agent_id)
            & (pc.field("boot_id") == manifest.boot_id)
            & (pc.field("seq_start") == manifest.seq_start)
            & (pc.field("seq_end") == manifest.seq_end)
        )
        for file in list_files(opened, table, lambda one: one == hour):
            if not _may_contain(file, manifest):
                continue
            path = f"{root}/{file.path}"
            with data_errors_translated(opened.table_uri):
                rows = pq.read_table(
                    path,
                    columns=list(columns),
                    filters=who,
                    filesystem=filesystem,
                    partitioning=None,
                ).to_pylist()
            if rows:
                return f"{LAKE}{table.name}/{file.path}", file.size_bytes, rows[0]
        return None


def _may_contain(file: DataFile, manifest: AcceptedManifest) -> bool:
    """Return False if the statistics of a file exclude a batch; the last text may be truncated."""
    for bounds, value in ((file.agents, manifest.agent_id), (file.boots, manifest.boot_id)):
        if bounds and (
            value < bounds[0] or (value > bounds[1] and not value.startswith(bounds[1]))
        ):
            return False
    if file.accepted_at.range_ns is None:
        return True
    first, last = file.accepted_at.range_ns
    at_ns = manifest.accepted_at_unix_ns
    return first - STATS_SLACK_NS <= at_ns <= last + STATS_SLACK_NS


def _place(
    manifest: AcceptedManifest,
    state: LakeState,
    rollup: BatchRollup,
    *,
    row: LedgerRow | None = None,
    problem: str = "",
) -> BatchInLake:
    table = f"{LAKE}{RECORD_TABLES[manifest.kind].name}/"
    return BatchInLake(state=state, table=table, row=row, rollup=rollup, problem=problem)
