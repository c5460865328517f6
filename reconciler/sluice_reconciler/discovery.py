"""The discovery record: how claims about it are merged, and how it is stored.

A claim is a fact: through this time, every batch of a lane that a gateway acknowledged is enqueued
or held. Facts of several reconcilers are merged by the maximum, so that none of them lowers what
another has shown. The record is swapped with `If-Match`; a writer that loses the swap merges its
claim with what the winner stored.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import structlog
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord, StoreUnavailable
from sluice_protocol.journals import DISCOVERY, DiscoveryRecord
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found
from sluice_protocol.units import NS_PER_S, ETag, UnixNs
from sluice_queue.lane import Runtime
from sluice_store.port import ObjectStore
from sluice_store.retry import WRITE_RETRY, RetryBudget

log = structlog.get_logger()

PASS_STEP_S: Final = 3.0
"""Time by which a full pass moves the record, at least, unless something else changed."""
LANE_STEP_S: Final = 1.0
"""Time by which a lane moves the record while the lanes have different times: other reconcilers
wait for it."""
IDLE_STEP_S: Final = 10.0
"""Time by which journals move the record while no journal object was processed, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryClaim:
    """What one reconciler has shown.

    Attributes:
        lanes: Per lane, the time through which every acknowledged batch is enqueued or held. Lanes
            that are not named are not claimed.
        journals: The number of its last journal object of which every entry is enqueued or held,
            per registered process; None leaves the stored numbers as they are.
        pass_began_ns: Of a full pass that left no batch behind.
    """

    lanes: Mapping[int, UnixNs] = field(default_factory=dict)
    held_by: str | None = None
    journals: Mapping[str, int] | None = None
    pass_began_ns: UnixNs | None = None
    listed: int = 0
    pass_queues: tuple[str, ...] = ()


def merge_claim(record: DiscoveryRecord, claim: DiscoveryClaim, lanes: int) -> DiscoveryRecord:
    """Return the record with the facts of a claim; no time and no number in it decreases."""
    before_ns = record.complete_through_unix_ns
    times = [
        max(record.lanes.get(_lane(lane), before_ns), claim.lanes.get(lane, 0))
        for lane in range(lanes)
    ]
    through_ns = min(times)
    passed_ns = max(record.pass_began_unix_ns or 0, claim.pass_began_ns or 0)
    is_newest_pass = claim.pass_began_ns is not None and claim.pass_began_ns == passed_ns
    return replace(
        record,
        complete_through_unix_ns=through_ns,
        lanes={_lane(lane): at for lane, at in enumerate(times) if at > through_ns},
        held_by=claim.held_by if _decides(record, claim, through_ns) else record.held_by,
        journals=record.journals
        if claim.journals is None
        else _merge_numbers(record, claim.journals),
        pass_began_unix_ns=passed_ns or None,
        listed=claim.listed if is_newest_pass else record.listed,
        pass_queues=claim.pass_queues if is_newest_pass else record.pass_queues,
    )


def lane_times(record: DiscoveryRecord, lanes: Iterable[int]) -> dict[int, int]:
    """Return the published time of each of these lanes."""
    through_ns = record.complete_through_unix_ns
    return {lane: record.lanes.get(_lane(lane), through_ns) for lane in lanes}


def _decides(record: DiscoveryRecord, claim: DiscoveryClaim, through_ns: int) -> bool:
    """Return True if the claim explains the time of the merged record."""
    if not claim.lanes:
        return False
    return through_ns > record.complete_through_unix_ns or min(claim.lanes.values()) == through_ns


def _merge_numbers(record: DiscoveryRecord, journals: Mapping[str, int]) -> dict[str, int]:
    """Return the greater number of each process; a process that was removed is dropped."""
    merged = {process: max(record.journals.get(process, 0), at) for process, at in journals.items()}
    return {process: at for process, at in sorted(merged.items()) if at}


def _lane(lane: int) -> str:
    return f"{lane:03d}"


def is_worth_writing(before: DiscoveryRecord, after: DiscoveryRecord, step_s: float) -> bool:
    """Return True if a record differs enough from the stored one to be written.

    Even in an idle store the time moves; a change of the time alone is written after `step_s`.
    """
    if before.complete_through_unix_ns == 0 and after.complete_through_unix_ns:
        return True
    moved_ns = after.complete_through_unix_ns - before.complete_through_unix_ns
    passed_ns = (after.pass_began_unix_ns or 0) - (before.pass_began_unix_ns or 0)
    return (
        max(moved_ns, passed_ns) >= step_s * NS_PER_S
        or _lanes_moved_ns(before, after) >= LANE_STEP_S * NS_PER_S
        or before.journals != after.journals
        or before.held_by != after.held_by
        or before.journaled_since_unix_ns != after.journaled_since_unix_ns
    )


def _lanes_moved_ns(before: DiscoveryRecord, after: DiscoveryRecord) -> int:
    """Return how far the lane that is ahead of the others has moved."""
    start_ns = before.complete_through_unix_ns
    return max((at - before.lanes.get(one, start_ns) for one, at in after.lanes.items()), default=0)


_EMPTY: Final = DiscoveryRecord(complete_through_unix_ns=0, listed=0)


class DiscoveryStore:
    """The stored discovery record: reads it, and swaps merged claims in."""

    def __init__(self, store: ObjectStore, lanes: int, runtime: Runtime) -> None:
        self._store = store
        self._lanes = lanes
        self._runtime = runtime
        self._etag: ETag | None = None
        self.record = _EMPTY
        """The record as last read or written."""
        self.writes = 0
        """Number of writes by this process."""

    async def read(self) -> UnixNs:
        """Read the record again; return the store's clock in the response."""
        read = await self._store.get(DISCOVERY)
        if not isinstance(read, Found):
            self._etag, self.record = None, _EMPTY
            return read.date_ns
        self._etag = read.info.etag
        try:
            self.record = decode_record(DISCOVERY, read.body, DiscoveryRecord)
        except InvalidRecord as error:
            # Every part of it is derived: it is written again, and work is repeated.
            log.warning("discovery_record_unreadable", key=DISCOVERY, reason=error.reason)
            self.record = _EMPTY
        return read.info.date_ns

    async def claim(self, claim: DiscoveryClaim, *, step_s: float = 0.0) -> bool:
        """Merge a claim into the stored record; return True if it was written.

        After a failure, a later claim contains this one.
        """
        return await self._update(lambda old: merge_claim(old, claim, self._lanes), step_s)

    async def set_journaled_since(self, since_ns: UnixNs | None) -> bool:
        """Store the time since which every gateway writes a journal; None if one does not."""
        return await self._update(lambda old: replace(old, journaled_since_unix_ns=since_ns), 0.0)

    async def _update(
        self, change: Callable[[DiscoveryRecord], DiscoveryRecord], step_s: float
    ) -> bool:
        budget = RetryBudget("swap", DISCOVERY, self._runtime.backoff(WRITE_RETRY))
        if self._etag is None:
            await self.read()
        while True:
            wanted = change(self.record)
            if not is_worth_writing(self.record, wanted, step_s):
                return False
            wanted = replace(
                wanted, revision=self.record.revision + 1, writer=self._runtime.id_bytes().hex()
            )
            try:
                if await self._write(wanted):
                    return True
                await self.read()
                if self.record.writer == wanted.writer:
                    return True
                await budget.wait_or_raise()
            except StoreUnavailable as error:
                await budget.wait_or_raise(error)

    async def _write(self, wanted: DiscoveryRecord) -> bool:
        """Create or swap the record; return False if it was not, or if that is unknown."""
        body = encode_record(wanted)
        outcome = (
            await self._store.create(DISCOVERY, body)
            if self._etag is None
            else await self._store.replace(DISCOVERY, body, if_match=self._etag)
        )
        if not isinstance(outcome, Applied):
            return False
        self._etag, self.record = outcome.etag, wanted
        self.writes += 1
        return True
