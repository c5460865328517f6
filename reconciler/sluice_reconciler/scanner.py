"""The steady scanner: new entries of the by-time index, from a durable checkpoint.

Event workers and gateways may write `accepted-by-time/` before anybody enqueued the batch. The
scanner lists it from the checkpoint minus an overlap, which covers skew between writers, retries
that land late, and a shutdown before the checkpoint was written. The checkpoint only saves work:
without it the scan starts a day back, and the full pass covers everything in any case.
"""

from collections import OrderedDict
from typing import Final, Literal

import msgspec

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.keys import ACCEPTED_BY_TIME, RECONCILER, accepted_key, hour_path
from sluice_protocol.manifests import AcceptedManifest, decode_record, encode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_reconciler.intake import Intake, Outcome

CHECKPOINT: Final = ObjectKey(f"{RECONCILER}scanner.json")
OVERLAP_S: Final = 600
START_BACK_S: Final = 86_400
RECENT_MAX: Final = 200_000
CHUNK: Final = 2048


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """How far the by-time index was read: Unix ns of acceptance."""

    schema: Literal["sluice.reconciler_scanner.v1"] = "sluice.reconciler_scanner.v1"
    through_unix_ns: int


class Scanner:
    """Reads the by-time index again and again; it remembers what it handed in lately."""

    def __init__(self, intake: Intake) -> None:
        """Binds the scanner to an intake."""
        self._intake = intake
        self._store = intake.store
        self._through_ns: int | None = None
        self._stored_ns = 0
        self._recent: OrderedDict[str, None] = OrderedDict()

    async def scan(self) -> Outcome:
        """Takes every entry behind the checkpoint minus the overlap that was not taken lately.

        Raises:
            StoreError: The store did not answer; the checkpoint stays.
            OutcomeUnknown: The bounds of a write are spent; the checkpoint stays.
        """
        start_ns = await self._start_ns()
        after = f"{ACCEPTED_BY_TIME}{hour_path(start_ns)}/{start_ns:020d}"
        outcome, chunk, seen_ns = Outcome(), list[ObjectKey](), start_ns
        async for page in self._store.list(ACCEPTED_BY_TIME, start_after=after):
            for one in page.objects:
                name = one.key.rpartition("/")[2]
                seen_ns = max(seen_ns, int(name[:20]) if name[:20].isdecimal() else 0)
                if name not in self._recent:
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

    async def _take(self, entries: list[ObjectKey]) -> Outcome:
        """Finds the accepted keys behind index entries and takes those that are not done."""
        found = await self._intake.each(entries, self._accepted)
        keys = [key for key in found if key is not None]
        outcome = await self._intake.take_new(keys)
        for entry in entries:
            self._recent[entry.rpartition("/")[2]] = None
        while len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)
        return outcome

    async def _accepted(self, entry: ObjectKey) -> ObjectKey | None:
        """Gives the accepted key of an entry; one that is no manifest is left to `rebuild`."""
        read = await self._store.get(entry)
        if not isinstance(read, Found):
            return None
        try:
            return accepted_key(decode_record(entry, read.body, AcceptedManifest).identity)
        except InvalidRecord:
            return None
