"""How far discovery is, as it is stored: for `sluice reconciler status` and `GET /v1/discovery`.

The report is read from the store only, so it is available while no reconciler runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from sluice_protocol.errors import InvalidRecord
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
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.journals.reader import RegistrationReader
from sluice_reconciler.passes.progress import PASS, PassRecord
from sluice_store.port import ObjectStore

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
        gateway: The name of the gateway.
        process: The name of the process.
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
    record = _decode_discovery(read.body) if isinstance(read, Found) else None
    last = await _read_pass(store)
    requests = RequestLimit(_CONCURRENCY)
    registered = await RegistrationReader(store, requests).read()
    newest = sorted(registered, reverse=True)[:PROCESSES_MAX]
    numbers: Mapping[str, int] = record.journals if record is not None else {}
    began_ns = None if record is None else record.pass_began_unix_ns
    reader = _ProcessReader(store, now_ns, numbers, began_ns)
    found = await requests.each([registered[process] for process in newest], reader.read)
    through_ns = record.complete_through_unix_ns if record is not None else 0
    return DiscoveryStatus(
        complete_through_unix_ns=through_ns or None,
        behind_s=_age_s(through_ns, now_ns) if through_ns else None,
        held_by=record.held_by if record is not None else None,
        journaled=bool(registered)
        and record is not None
        and record.journaled_since_unix_ns is not None,
        pass_age_s=None if began_ns is None else _age_s(began_ns, now_ns),
        pass_running=last is not None and not last.ended,
        pass_listed=sum(span.listed for span in last.spans) if last is not None else 0,
        missed=last.missed if last is not None else 0,
        processes=tuple(sorted(found, key=lambda one: (one.state in _ENDED, one.process))),
        processes_more=len(registered) - len(newest),
        batches=record.listed if record is not None else 0,
        lanes_behind_s={
            int(lane): _age_s(at_ns, now_ns)
            for lane, at_ns in (record.lanes.items() if record is not None else ())
        },
    )


def _decode_discovery(body: bytes) -> DiscoveryRecord | None:
    try:
        return decode_record(DISCOVERY, body, DiscoveryRecord)
    except InvalidRecord:
        return None


async def _read_pass(store: ObjectStore) -> PassRecord | None:
    read = await store.get(PASS)
    if not isinstance(read, Found):
        return None
    try:
        return decode_record(PASS, read.body, PassRecord)
    except InvalidRecord:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a process is: its last processed object, and what is behind it."""

    progress: ProcessProgress
    unprocessed: int
    readable: bool = True


class _ProcessReader:
    def __init__(
        self,
        store: ObjectStore,
        now_ns: UnixNs,
        numbers: Mapping[str, int],
        pass_began_ns: int | None,
    ) -> None:
        self._store = store
        self._now_ns = now_ns
        self._numbers = numbers
        self._pass_began_ns = None if pass_began_ns is None else UnixNs(pass_began_ns)

    async def read(self, registered: tuple[GatewayProcess, UnixNs]) -> ProcessStatus:
        registration, written_ns = registered
        number = self._numbers.get(registration.process, 0)
        place = await self._place(registration, written_ns, number)
        progress = place.progress
        return ProcessStatus(
            gateway=registration.collector_id,
            process=registration.process,
            state=self._state(place),
            behind_s=_age_s(progress.complete_through_ns, self._now_ns),
            silent_s=_age_s(progress.newest_ns, self._now_ns),
            processed=number,
            unprocessed=place.unprocessed,
        )

    async def _place(self, registration: GatewayProcess, written_ns: UnixNs, number: int) -> _Place:
        progress = ProcessProgress(
            collector_id=registration.collector_id,
            process=registration.process,
            acceptance=registration.acceptance,
            complete_through_ns=UnixNs(registration.started_at_unix_ns),
            newest_ns=written_ns,
        )
        key, readable = journal_key(registration.process, number), True
        read = await self._store.get(key)
        if isinstance(read, Found):
            try:
                header = decode_journal(key, read.body).header
            except InvalidRecord:
                readable = False
            else:
                progress = replace(
                    progress,
                    complete_through_ns=bounded_through_ns(header, read.info.last_modified_ns),
                    newest_ns=read.info.last_modified_ns,
                    closed=header.closed,
                )
        unprocessed = 0
        async for page in self._store.list(journal_prefix(registration.process), start_after=key):
            unprocessed = len(page.objects)
            times = [one.last_modified_ns for one in page.objects]
            progress = replace(progress, newest_ns=max([progress.newest_ns, *times]))
            if page.objects and page.last and not progress.closed:
                progress = replace(progress, closed=await self._is_closed(page.objects[-1].key))
            break
        return _Place(progress=progress, unprocessed=unprocessed, readable=readable)

    async def _is_closed(self, key: ObjectKey) -> bool:
        """Return True if the newest object of a journal is its last one, processed or not."""
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return False
        try:
            return decode_journal(key, read.body).header.closed
        except InvalidRecord:
            return False

    def _state(self, place: _Place) -> ProcessState:
        if not place.readable:
            return ProcessState.UNREADABLE
        if place.progress.closed:
            return ProcessState.CLOSED
        if ended_processes([place.progress], self._pass_began_ns):
            return ProcessState.REPLACED
        silent_s = _age_s(place.progress.newest_ns, self._now_ns)
        return ProcessState.LAPSED if silent_s > JOURNAL_REPLACED_AFTER_S else ProcessState.OPEN


def _age_s(since_ns: int, now_ns: int) -> float:
    return max(0, now_ns - since_ns) / NS_PER_S
