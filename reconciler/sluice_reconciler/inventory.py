"""A cold scan from an S3 Inventory report instead of listing everything.

A report is days old and may leave out what came or went around its time, so it only names
candidates: what it names is read from the store, and what it does not name proves nothing. A file
that is missing, altered or malformed is reported and the others are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_protocol.errors import BadUsage, InvalidRecord
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.events import accepted_of
from sluice_reconciler.new_batches import ComparedRanges
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.inventory import InventoryRow, read_inventory_manifest, read_inventory_rows
from sluice_store.port import ObjectStore

log = structlog.get_logger()

CHUNK: Final = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoryScanResult:
    """What a scan of a report did.

    Attributes:
        age_s: How old the report is by the store's clock, seconds.
        named: Accepted keys that it names.
        foreign: Other keys that it names.
        unreadable: Files that are missing, altered or malformed, each with the reason.
        outcome: What became of the keys that were not done.
    """

    age_s: float
    named: int
    foreign: int
    unreadable: tuple[str, ...]
    outcome: PipelineResult


async def scan_inventory(
    intake: BatchPipeline, reports: ObjectStore, manifest_key: ObjectKey
) -> InventoryScanResult:
    """Takes every batch that a report names and that was not done.

    Args:
        intake: Where keys go.
        reports: The bucket that holds the report, from its root.
        manifest_key: The report's `manifest.json`.

    Raises:
        BadUsage: There is no such report, or its manifest does not match its checksum.
        StoreError: A store did not answer.
    """
    try:
        manifest, date_ns = await read_inventory_manifest(reports, manifest_key)
    except InvalidRecord as error:
        raise BadUsage(f"{error.reason}, key=`{error.key}`") from error
    scan = _Scan(intake)
    for file in manifest.files:
        try:
            await scan.take(await read_inventory_rows(reports, manifest, file))
        except InvalidRecord as error:
            log.warning("inventory file not usable", key=file.key, reason=error.reason)
            scan.unreadable.append(f"{file.key}: {error.reason}")
    return InventoryScanResult(
        age_s=max(0.0, (date_ns - manifest.created_at_ns) / NS_PER_S),
        named=scan.named,
        foreign=scan.foreign,
        unreadable=tuple(scan.unreadable),
        outcome=scan.outcome,
    )


class _Scan:
    """Adds up what the files of one report named."""

    def __init__(self, intake: BatchPipeline) -> None:
        self._intake = intake
        self._known: ComparedRanges = {}
        self.named = 0
        self.foreign = 0
        self.unreadable: list[str] = []
        self.outcome = PipelineResult()

    async def take(self, rows: Iterator[InventoryRow]) -> None:
        """Hands the keys of a file's current objects to the intake, a chunk at a time."""
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
            done = await self._intake.take_new(chunk, known=self._known)
            self.outcome = self.outcome.plus(done)
