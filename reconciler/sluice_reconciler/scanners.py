"""The steady scanner: new entries of the by-time index, from a durable checkpoint.

Event workers and gateways may write `accepted-by-time/` before anybody enqueued the batch. The
scanner lists it from the checkpoint minus an overlap, which covers skew between writers, retries
that land late, and a shutdown before the checkpoint was written. The checkpoint only saves work:
without it the scan starts a day back, and the full pass covers everything in any case.

The tail scan: what came behind the last key of each life that was active lately.

For a store where a listing costs nothing and nobody sends events: the embedded directory. It lists
each of the latest lives behind its last known key, so a batch is found without listing the others.
Batches of one life may be accepted out of order; so while one of its latest keys does not touch the
one before, the listing starts there. New lives, and batches further back, are found by the full
pass.
"""

import itertools
from collections import OrderedDict
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import (
    ACCEPTED_BY_TIME,
    RECONCILER,
    accepted_key,
    hour_path,
    parse_accepted_key,
)
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.indexes import unpack
from sluice_reconciler.new_batches import RecentKeys
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult

CHECKPOINT: Final = ObjectKey(f"{RECONCILER}scanner.json")
OVERLAP_S: Final = 600
START_BACK_S: Final = 86_400
RECENT_MAX: Final = 200_000
CHUNK: Final = 2048
READ_AT_ONCE: Final = 64
"""Entries read before what they name is taken; each may be a pack of thousands."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far the by-time index was read: Unix ns of acceptance."""

    schema: Literal["sluice.reconciler_scanner.v1"] = "sluice.reconciler_scanner.v1"
    through_unix_ns: int


class TimeIndexScanner:
    """Reads the by-time index again and again; it remembers what it handed in lately."""

    def __init__(self, intake: BatchPipeline) -> None:
        """Binds the scanner to an intake."""
        self._intake = intake
        self._store = intake.store
        self._through_ns: int | None = None
        self._stored_ns = 0
        self._recent = RecentKeys(RECENT_MAX)

    async def scan(self) -> PipelineResult:
        """Takes every entry behind the checkpoint minus the overlap that was not taken lately.

        Raises:
            StoreError: The store did not answer; the checkpoint stays.
            OutcomeUnknown: The bounds of a write are spent; the checkpoint stays.
        """
        start_ns = await self._start_ns()
        after = f"{ACCEPTED_BY_TIME}{hour_path(start_ns)}/{start_ns:020d}"
        outcome, chunk, seen_ns = PipelineResult(), list[ObjectKey](), start_ns
        async for page in self._store.list(ACCEPTED_BY_TIME, start_after=after):
            for one in page.objects:
                name = one.key.rpartition("/")[2]
                # A name from the future must not carry the checkpoint beyond what is there.
                at_ns = int(name[:20]) if name[:20].isdecimal() else 0
                seen_ns = max(seen_ns, min(at_ns, page.date_ns))
                if one.key not in self._recent and one.key not in self._intake.indexed:
                    chunk.append(one.key)
            if len(chunk) >= CHUNK:
                outcome, chunk = outcome.plus(await self._take(chunk)), []
        outcome = outcome.plus(await self._take(chunk))
        self._through_ns = max(seen_ns, start_ns + OVERLAP_S * NS_PER_S)
        await self._store_checkpoint()
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

    async def _store_checkpoint(self) -> None:
        through = self._through_ns or 0
        # Once in a minute is enough: the overlap is ten times that.
        if through - self._stored_ns >= 60 * NS_PER_S:
            await self._store.overwrite(
                CHECKPOINT, encode_record(Checkpoint(through_unix_ns=through))
            )
            self._stored_ns = through

    async def _take(self, entries: list[ObjectKey]) -> PipelineResult:
        """Finds the accepted keys behind index entries and takes those that are not done."""
        outcome, step = PipelineResult(), self._intake.settings.list_batches_max
        for at in range(0, len(entries), READ_AT_ONCE):
            found = await self._intake.each(entries[at : at + READ_AT_ONCE], self._accepted)
            keys = [key for some in found for key in some]
            for first in range(0, len(keys), step):
                outcome = outcome.plus(await self._intake.take_new(keys[first : first + step]))
        self._recent.add(entries)
        return outcome

    async def _accepted(self, listed: ObjectKey) -> list[ObjectKey]:
        """Gives the accepted keys of an entry or a pack; what is neither is left to `rebuild`."""
        read = await self._store.get(listed)
        if not isinstance(read, Found):
            return []
        try:
            return [
                accepted_key(decode_record(entry, body, AcceptedManifest).identity)
                for entry, body in unpack(listed, read.body)
            ]
        except InvalidRecord:
            return []


BOOTS_MAX: Final = 1000
LATEST_MAX: Final = 32
"""Keys of one life among which a hole is watched."""


class BootTailScanner:
    """Remembers the latest keys of each life that a route met lately."""

    def __init__(self, intake: BatchPipeline) -> None:
        """Binds the tail to an intake."""
        self._intake = intake
        self._latest: OrderedDict[str, list[ObjectKey]] = OrderedDict()

    def saw(self, key: ObjectKey) -> None:
        """Takes note of an accepted key; the lives met longest ago are forgotten first."""
        boot = key.rpartition("/")[0] + "/"
        known = self._latest.get(boot, [])
        if key not in known:
            self._latest[boot] = sorted([*known, key])[-LATEST_MAX:]
        self._latest.move_to_end(boot)
        if len(self._latest) > BOOTS_MAX:
            self._latest.popitem(last=False)

    async def scan(self) -> PipelineResult:
        """Takes everything behind the last keys.

        Raises:
            StoreError: The store did not answer; the full pass finds what was missed.
            OutcomeUnknown: As `Intake.take`.
        """
        found: list[ObjectKey] = []
        for boot, latest in list(self._latest.items()):
            known = set(latest)
            start_after = _behind(latest)
            async for page in self._intake.store.list(boot, start_after=start_after):
                found += [one.key for one in page.objects if one.key not in known]
        outcome = PipelineResult()
        step = self._intake.settings.list_batches_max
        for at in range(0, len(found), step):
            outcome = outcome.plus(await self._intake.take_new(found[at : at + step]))
        for key in found:
            self.saw(key)
        return outcome


def _behind(latest: list[ObjectKey]) -> ObjectKey:
    """Gives the last key before the first hole among the latest ones."""
    for before, after in itertools.pairwise(latest):
        if not _touch(before, after):
            return before
    return latest[-1]


def _touch(before: ObjectKey, after: ObjectKey) -> bool:
    try:
        return parse_accepted_key(before).seq_end + 1 >= parse_accepted_key(after).seq_start
    except InvalidRecord:
        return True
