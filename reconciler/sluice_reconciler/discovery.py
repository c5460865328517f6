"""The discovery record: how claims about it are merged, how it is stored, and the status of it.

A claim is a fact: through this time, every batch of a lane that a gateway acknowledged is enqueued
or held. Facts of several reconcilers are merged by the maximum, so that none of them lowers what
another has shown. The record is swapped with `If-Match`; a writer that loses the swap merges its
claim with what the winner stored.

`sluice reconciler status` and `GET /v1/discovery` return the status. It is read from the store
only, so it is available while no reconciler runs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from sluice_protocol.errors import InvalidRecord, StoreUnavailable
from sluice_protocol.journals import (
    DISCOVERY,
    JOURNAL_REPLACED_AFTER_S,
    DiscoveryRecord,
    GatewayProcess,
    ProcessProgress,
    bounded_through_ns,
    decode_journal,
    ended_processes,
    journal_key,
    journal_prefix,
)
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Found, GetOutcome
from sluice_protocol.units import NS_PER_S, ETag, ObjectKey, UnixNs
from sluice_queue.register_client import Runtime
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.journals.reader import RegistrationReader
from sluice_reconciler.passes.progress import PASS, PassRecord
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


def merge_claim(
    record: DiscoveryRecord, claim: DiscoveryClaim, lanes: int, layout: int = 0
) -> DiscoveryRecord:
    """Return the record with the facts of a claim; no time and no number in it decreases.

    A claim about the lanes of an earlier layout is ignored: it does not know the present ones.
    """
    if record.layout > layout:
        return record
    times = [max(record.lane_time(lane, layout), claim.lanes.get(lane, 0)) for lane in range(lanes)]
    through_ns = min(times)
    passed_ns = max(record.pass_began_unix_ns or 0, claim.pass_began_ns or 0)
    is_newest_pass = claim.pass_began_ns is not None and claim.pass_began_ns == passed_ns
    return replace(
        record,
        complete_through_unix_ns=through_ns,
        lanes={_lane(lane): at for lane, at in enumerate(times) if at > through_ns},
        layout=layout,
        held_by=claim.held_by if _decides(record, claim, through_ns) else record.held_by,
        journals=record.journals
        if claim.journals is None
        else _merge_numbers(record, claim.journals),
        pass_began_unix_ns=passed_ns or None,
        listed=claim.listed if is_newest_pass else record.listed,
        pass_queues=claim.pass_queues if is_newest_pass else record.pass_queues,
    )


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

    def __init__(self, store: ObjectStore, lanes: int, runtime: Runtime, layout: int = 0) -> None:
        self._store = store
        self._lanes = lanes
        self._layout = layout
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
        return await self._update(
            lambda old: merge_claim(old, claim, self._lanes, self._layout), step_s
        )

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


PROCESSES_MAX: Final = 1_000
"""Processes of a report; further ones are counted."""
_CONCURRENCY: Final = 32


class ProcessState(StrEnum):
    """The state of a gateway process, by its journal."""

    OPEN = "open"
    LAPSED = "lapsed"
    REPLACED = "replaced"
    CLOSED = "closed"
    UNREADABLE = "unreadable"


_ENDED: Final = (ProcessState.CLOSED, ProcessState.REPLACED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    """One registered gateway process.

    Attributes:
        state: `lapsed` waits for a full pass; `replaced` and `closed` have ended.
        behind_s: Age of the time through which its journal is processed, seconds.
        silent_s: Time since its newest object was written, seconds.
        processed: Number of its last processed journal object.
        unprocessed: Number of newer objects; at most 1 000 are counted.
    """

    gateway: str
    process: str
    state: ProcessState
    behind_s: float
    silent_s: float
    processed: int
    unprocessed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryStatus:
    """How far discovery is.

    Attributes:
        complete_through_unix_ns: Every batch acknowledged before is enqueued or held; None if it is
            not known.
        behind_s: Age of that time, seconds.
        held_by: The gateway and process that hold the time back.
        journaled: Whether journals decide the time; otherwise full passes do.
        pass_age_s: Time since the last complete full pass began, seconds.
        pass_running: Whether a full pass was begun and has not ended.
        pass_listed: Number of keys that it has listed so far.
        missed: Number of batches that the last full pass found and no journal named.
        processes: The registered processes, those that have not ended first.
        processes_more: Number of processes that are not listed.
        batches: Number of keys under `accepted/` in the last complete full pass.
        lanes_behind_s: As `behind_s`, of each lane that is less far behind.
    """

    complete_through_unix_ns: int | None
    behind_s: float | None
    held_by: str | None
    journaled: bool
    pass_age_s: float | None
    pass_running: bool
    pass_listed: int
    missed: int
    processes: tuple[ProcessStatus, ...]
    processes_more: int = 0
    batches: int = 0
    lanes_behind_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_caught_up(self) -> bool:
        """Whether every object that a gateway wrote is processed, and each gateway still reports.

        Then the age of `complete_through_unix_ns` is that of the newest report, not a delay.
        """
        return (
            self.journaled
            and not self.processes_more
            and bool(self.processes)
            and all(
                one.unprocessed == 0 and one.state in (*_ENDED, ProcessState.OPEN)
                for one in self.processes
            )
        )

    @property
    def has_ended(self) -> bool:
        """Whether no gateway is open and all that they wrote is processed: it is complete now."""
        return self.is_caught_up and all(one.state in _ENDED for one in self.processes)

    @property
    def accepted_until_unix_ns(self) -> int | None:
        """The time before which every accepted batch is enqueued or held; None if not known.

        If no gateway is open, it is the time of the report, by the store's clock.
        """
        if self.complete_through_unix_ns is None or self.behind_s is None or not self.has_ended:
            return self.complete_through_unix_ns
        return self.complete_through_unix_ns + round(self.behind_s * NS_PER_S)

    def lane_behind_s(self, lane: int) -> float | None:
        """Return the age of the time through which a lane is complete; None if it is not known."""
        return self.lanes_behind_s.get(lane, self.behind_s)


async def read_discovery_status(store: ObjectStore) -> DiscoveryStatus:
    """Read the discovery record, the progress of the full pass, and every registration."""
    read = await store.get(DISCOVERY)
    now_ns = read.info.date_ns if isinstance(read, Found) else read.date_ns
    record = _decode(DISCOVERY, read, DiscoveryRecord) or _EMPTY
    last = _decode(PASS, await store.get(PASS), PassRecord)
    requests = RequestLimit(_CONCURRENCY)
    registered = await RegistrationReader(store, requests).read()
    newest = sorted(registered, reverse=True)[:PROCESSES_MAX]

    async def status_of(process: str) -> ProcessStatus:
        return await _read_process(store, record, now_ns, *registered[process])

    found = await requests.each(newest, status_of)
    through_ns, began_ns = record.complete_through_unix_ns, record.pass_began_unix_ns
    return DiscoveryStatus(
        complete_through_unix_ns=through_ns or None,
        behind_s=_age_s(through_ns, now_ns) if through_ns else None,
        held_by=record.held_by,
        journaled=bool(registered) and record.journaled_since_unix_ns is not None,
        pass_age_s=None if began_ns is None else _age_s(began_ns, now_ns),
        pass_running=last is not None and not last.ended,
        pass_listed=sum(span.listed for span in last.spans) if last is not None else 0,
        missed=last.missed if last is not None else 0,
        processes=tuple(sorted(found, key=lambda one: (one.state in _ENDED, one.process))),
        processes_more=len(registered) - len(newest),
        batches=record.listed,
        lanes_behind_s={int(lane): _age_s(at_ns, now_ns) for lane, at_ns in record.lanes.items()},
    )


_Record = TypeVar("_Record", bound=msgspec.Struct)


def _decode(key: ObjectKey, read: GetOutcome, kind: type[_Record]) -> _Record | None:
    """Return a record that was read; None if it does not exist or is unreadable."""
    try:
        return decode_record(key, read.body, kind) if isinstance(read, Found) else None
    except InvalidRecord:
        return None


async def _read_process(
    store: ObjectStore,
    record: DiscoveryRecord,
    now_ns: UnixNs,
    registration: GatewayProcess,
    written_ns: UnixNs,
) -> ProcessStatus:
    """Read the last processed object of a journal, and list what is behind it."""
    process = registration.process
    number = record.journals.get(process, 0)
    key, unprocessed, is_readable = journal_key(process, number), 0, True
    through_ns, newest_ns, closed = UnixNs(registration.started_at_unix_ns), written_ns, False
    read = await store.get(key)
    if isinstance(read, Found):
        try:
            header = decode_journal(key, read.body).header
        except InvalidRecord:
            is_readable = False
        else:
            newest_ns, closed = read.info.last_modified_ns, header.closed
            through_ns = bounded_through_ns(header, newest_ns)
    async for page in store.list(journal_prefix(process), start_after=key):
        unprocessed = len(page.objects)
        newest_ns = max([newest_ns, *(one.last_modified_ns for one in page.objects)])
        if page.objects and page.last and not closed:
            closed = await _is_closed(store, page.objects[-1].key)
        break
    progress = ProcessProgress(
        collector_id=registration.collector_id,
        process=process,
        acceptance=registration.acceptance,
        complete_through_ns=through_ns,
        newest_ns=newest_ns,
        closed=closed,
    )
    return ProcessStatus(
        gateway=registration.collector_id,
        process=process,
        state=_state_of(progress, record, now_ns) if is_readable else ProcessState.UNREADABLE,
        behind_s=_age_s(through_ns, now_ns),
        silent_s=_age_s(newest_ns, now_ns),
        processed=number,
        unprocessed=unprocessed,
    )


async def _is_closed(store: ObjectStore, key: ObjectKey) -> bool:
    """Return True if the newest object of a journal is its last one, processed or not."""
    read = await store.get(key)
    try:
        return isinstance(read, Found) and decode_journal(key, read.body).header.closed
    except InvalidRecord:
        return False


def _state_of(progress: ProcessProgress, record: DiscoveryRecord, now_ns: UnixNs) -> ProcessState:
    began_ns = record.pass_began_unix_ns
    if progress.closed:
        return ProcessState.CLOSED
    if ended_processes([progress], None if began_ns is None else UnixNs(began_ns)):
        return ProcessState.REPLACED
    is_silent = _age_s(progress.newest_ns, now_ns) > JOURNAL_REPLACED_AFTER_S
    return ProcessState.LAPSED if is_silent else ProcessState.OPEN


def _age_s(since_ns: int, now_ns: int) -> float:
    return max(0, now_ns - since_ns) / NS_PER_S
