"""The scanners: quicker routes than the full pass, which finds whatever they miss.

- `TimeIndexScanner` reads new entries of the by-time index, from a durable checkpoint.
- `BootTailScanner` lists each recently active boot behind its last known key.
- `scan_inventory` reads an S3 Inventory report, for a cold scan without a listing.
"""

import itertools
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import structlog

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    RECONCILER,
    hour_path,
    parse_accepted_key,
)
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.events import accepted_of
from sluice_reconciler.indexes import decode_by_time
from sluice_reconciler.lanes.new_batches import ComparedRanges, RecentKeys
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.inventory import InventoryRow, read_inventory_manifest, read_inventory_rows
from sluice_store.port import ObjectStore

log = structlog.get_logger()

CHECKPOINT: Final = ObjectKey(f"{RECONCILER}scanner.json")
CHECKPOINT_INTERVAL_S: Final = 60
"""Time between two writes of the checkpoint, at least; the overlap is ten times as long."""

OVERLAP_S: Final = 600
START_BACK_S: Final = 86_400
RECENT_MAX: Final = 200_000
CHUNK: Final = 2048
"""Keys or entries that a scan collects before they are processed."""
ENTRIES_READ_MAX: Final = 64
"""Entries that are read before their batches are processed; each may be a pack of thousands."""

BOOTS_MAX: Final = 1000
LATEST_MAX: Final = 32
"""Latest keys of one boot among which a hole is noticed."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The time of acceptance up to which the by-time index was read, Unix ns."""

    schema: Literal["sluice.reconciler_scanner.v1"] = "sluice.reconciler_scanner.v1"
    through_unix_ns: int


class TimeIndexScanner:
    """Scans the by-time index from a durable checkpoint.

    Event workers and gateways may write `accepted-by-time/` before the batch is enqueued. Each scan
    lists it from the checkpoint minus an overlap, which covers clock skew between writers, late
    retries, and a shutdown before the checkpoint was written. The checkpoint only saves work:
    without one, the scan starts a day back.
    """

    def __init__(self, store: ObjectStore, pipeline: BatchPipeline, requests: RequestLimit) -> None:
        self._store = store
        self._pipeline = pipeline
        self._requests = requests
        self._through_ns: int | None = None
        self._stored_ns = 0
        self._recent = RecentKeys(RECENT_MAX)

    async def scan(self) -> PipelineResult:
        """Process every entry behind the checkpoint that was not processed lately.

        After an error, the checkpoint is unchanged.
        """
        start_ns = await self._start_ns()
        after = f"{ACCEPTED_BY_TIME}{hour_path(start_ns)}/{start_ns:020d}"
        outcome, chunk, seen_ns = PipelineResult(), list[ObjectKey](), start_ns
        async for page in self._store.list(ACCEPTED_BY_TIME, start_after=after):
            for one in page.objects:
                name = one.key.rpartition("/")[2]
                # A name with a future time must not move the checkpoint beyond the present.
                at_ns = int(name[:20]) if name[:20].isdecimal() else 0
                seen_ns = max(seen_ns, min(at_ns, page.date_ns))
                if one.key not in self._recent and not self._pipeline.has_indexed(one.key):
                    chunk.append(one.key)
            if len(chunk) >= CHUNK:
                outcome, chunk = outcome.plus(await self._process(chunk)), []
        outcome = outcome.plus(await self._process(chunk))
        self._through_ns = max(seen_ns, start_ns + OVERLAP_S * NS_PER_S)
        await self._store_checkpoint(self._through_ns)
        return outcome

    async def _start_ns(self) -> int:
        if self._through_ns is None:
            self._through_ns = await self._read_checkpoint()
        return max(0, self._through_ns - OVERLAP_S * NS_PER_S)

    async def _read_checkpoint(self) -> int:
        read = await self._store.get(CHECKPOINT)
        if isinstance(read, Found):
            try:
                return decode_record(CHECKPOINT, read.body, Checkpoint).through_unix_ns
            except InvalidRecord:
                return read.info.date_ns - START_BACK_S * NS_PER_S
        return read.date_ns - START_BACK_S * NS_PER_S

    async def _store_checkpoint(self, through_ns: int) -> None:
        if through_ns - self._stored_ns >= CHECKPOINT_INTERVAL_S * NS_PER_S:
            record = Checkpoint(through_unix_ns=through_ns)
            await self._store.overwrite(CHECKPOINT, encode_record(record))
            self._stored_ns = through_ns

    async def _process(self, entries: list[ObjectKey]) -> PipelineResult:
        outcome = PipelineResult()
        for at in range(0, len(entries), ENTRIES_READ_MAX):
            found = await self._requests.each(
                entries[at : at + ENTRIES_READ_MAX], self._accepted_keys
            )
            keys = [key for some in found for key in some]
            outcome = outcome.plus(await self._pipeline.process_new_in_steps(keys))
        self._recent.add(entries)
        return outcome

    async def _accepted_keys(self, listed: ObjectKey) -> list[ObjectKey]:
        """Return the accepted keys that an index object names; `rebuild` repairs a broken one."""
        read = await self._store.get(listed)
        if not isinstance(read, Found):
            return []
        try:
            return list(decode_by_time(listed, read.body))
        except InvalidRecord:
            return []


class BootTailScanner:
    """Scans the recently active boots, each behind its last known key.

    For a store where a listing costs nothing and no client sends events: the embedded directory.
    Batches of one boot may be accepted out of order. So while one of its latest keys is not
    adjacent to the one before, the listing starts there. New boots, and batches further back, are
    found by the full pass.
    """

    def __init__(self, store: ObjectStore, pipeline: BatchPipeline) -> None:
        self._store = store
        self._pipeline = pipeline
        self._latest: OrderedDict[str, list[ObjectKey]] = OrderedDict()

    def observe(self, key: ObjectKey) -> None:
        """Remember an accepted key; the boots observed longest ago are dropped first."""
        boot = key.rpartition("/")[0] + "/"
        known = self._latest.get(boot, [])
        if key not in known:
            self._latest[boot] = sorted([*known, key])[-LATEST_MAX:]
        self._latest.move_to_end(boot)
        if len(self._latest) > BOOTS_MAX:
            self._latest.popitem(last=False)

    async def scan(self) -> PipelineResult:
        """Process every batch behind the last known keys."""
        found: list[ObjectKey] = []
        for boot, latest in list(self._latest.items()):
            known = set(latest)
            async for page in self._store.list(boot, start_after=_before_first_hole(latest)):
                found += [one.key for one in page.objects if one.key not in known]
        outcome = await self._pipeline.process_new_in_steps(found)
        for key in found:
            self.observe(key)
        return outcome


def _before_first_hole(latest: list[ObjectKey]) -> ObjectKey:
    """Return the last key before the first hole among the latest ones, else the last key."""
    for before, after in itertools.pairwise(latest):
        if not _are_adjacent(before, after):
            return before
    return latest[-1]


def _are_adjacent(before: ObjectKey, after: ObjectKey) -> bool:
    try:
        return parse_accepted_key(before).seq_end + 1 >= parse_accepted_key(after).seq_start
    except InvalidRecord:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryScanResult:
    """What the scan of an inventory report did.

    Attributes:
        age_s: By the store's clock.
        unreadable: Files that are missing, altered or malformed, each with the reason.
    """

    age_s: float
    named: int
    foreign: int
    unreadable: tuple[str, ...]
    outcome: PipelineResult


async def scan_inventory(
    pipeline: BatchPipeline, reports: ObjectStore, manifest_key: ObjectKey
) -> InventoryScanResult:
    """Process every batch that an S3 Inventory report names.

    A report is days old and may omit objects created or deleted around its time, so it only names
    candidates: the store is read for what it names, and what it does not name proves nothing. A
    file that is missing, altered or malformed is reported, and the others are read. `reports` is
    the bucket with the report, from its root. Raise `BadUsage` if there is no such report, or its
    manifest does not match its checksum.
    """
    try:
        manifest, date_ns = await read_inventory_manifest(reports, manifest_key)
    except InvalidRecord as error:
        raise BadUsage(f"{error.reason}, key=`{error.key}`") from error
    scan = _InventoryScan(pipeline)
    for file in manifest.files:
        try:
            await scan.process(await read_inventory_rows(reports, manifest, file))
        except InvalidRecord as error:
            log.warning("inventory_file_skipped", key=file.key, reason=error.reason)
            scan.unreadable.append(f"{file.key}: {error.reason}")
    return InventoryScanResult(
        age_s=max(0.0, (date_ns - manifest.created_at_ns) / NS_PER_S),
        named=scan.named,
        foreign=scan.foreign,
        unreadable=tuple(scan.unreadable),
        outcome=scan.outcome,
    )


class _InventoryScan:
    """The totals over the files of one report."""

    def __init__(self, pipeline: BatchPipeline) -> None:
        self._pipeline = pipeline
        self._compared: ComparedRanges = {}
        self.named = 0
        self.foreign = 0
        self.unreadable: list[str] = []
        self.outcome = PipelineResult()

    async def process(self, rows: Iterator[InventoryRow]) -> None:
        """Process the keys of a file's current objects, a chunk at a time."""
        chunk: list[ObjectKey] = []
        for row in rows:
            if not row.is_current_object:
                continue
            key = accepted_of(row.key)
            if key is None:
                self.foreign += 1
                continue
            self.named += 1
            chunk.append(key)
            if len(chunk) >= CHUNK:
                await self._flush(chunk)
                chunk = []
        await self._flush(chunk)

    async def _flush(self, chunk: list[ObjectKey]) -> None:
        if chunk:
            done = await self._pipeline.process_new(chunk, compared=self._compared)
            self.outcome = self.outcome.plus(done)
