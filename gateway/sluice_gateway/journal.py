"""The acceptance journal of a worker that accepts in the store: registration, objects, fence.

A worker registers before it accepts connections. `run` then writes what was noted, once in an
interval or when many entries wait, and a heartbeat while nothing is noted. An upload notes its
manifest and then calls `require_current` before its 200 is returned:

    current ── no durable write began within the fence ──► lapsed ── registered again ──► current
       └── close ──► closed: no further 200

A worker that was suspended, or whose journal cannot be written, is lapsed. A reader may have
replaced its journal by a full pass, so it registers again before its next 200. Entries that are not
durable move to the new journal. The old journal is closed when the store allows it: without that,
its last time would hold queries back until a full pass.
`JournalBook` decides without I/O what is written. An entry passes these states:

    noted ── next_object ──► in the pending object ── settle ──► durable
      ▲                                  │ └─ skip: another number
      └──────────────────────────────────┘    succeed: to the book of the next registration

At most one object is pending. It keeps its number and bytes until it is durable, so a write with an
unknown outcome is repeated without a risk. Source: `sluice_protocol.journals`, ADR 22.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from sluice_gateway.metrics import GatewayMetrics, ObservedStore
from sluice_protocol.authority import AcceptanceMode
from sluice_protocol.clock import IdSource, MachineInstant, SuspendAwareClock, machine_now
from sluice_protocol.errors import ErrorCode, SluiceError, StoreUnavailable
from sluice_protocol.journals import (
    FENCE_S,
    HEARTBEAT_S,
    JOURNAL_INTERVAL_S,
    GatewayProcess,
    JournalHeader,
    encode_journal,
    journal_key,
    process_name,
    registration_key,
)
from sluice_protocol.manifests import encode_record
from sluice_protocol.outcomes import Applied, Exists
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.authority import read_store_time
from sluice_store.retry import Backoff, RetrySettings, create_known
from sluice_web.problems import HttpRefusal

ENTRIES_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of entries that are not durable, above which a process accepts no upload."""
OBJECT_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of entries in one journal object; more entries become several objects."""


def must_register_again(began: MachineInstant | None, now: MachineInstant, fence_s: float) -> bool:
    """Return True if a process may not respond 200 before it registers again.

    `began` is when the write of its newest durable object began; None before its registration.
    """
    return began is None or began.seconds_to(now) > fence_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingObject:
    """A journal object whose bytes are decided and that is not known to be durable.

    The bytes are the same in every try; the first try began at `began`. The last object of a
    process is `closed`.
    """

    number: int
    key: ObjectKey
    body: bytes
    entries: tuple[bytes, ...]
    began: MachineInstant
    closed: bool


class JournalBook:
    """The entries of one registration that are not durable, and the object that is written.

    Attributes:
        process: The name of the process; empty before the first registration.
        durable_from: When the write of the newest durable object began, the registration included.
        begun: When the write of the newest object began, durable or not.
        resumed: Whether an earlier process began this journal, and this one has not written yet: a
            number may be taken.
    """

    def __init__(
        self, process: str, began: MachineInstant | None, started_ns: UnixNs | None = None
    ) -> None:
        """Start a journal; its registration contains `started_ns` and was written at `began`."""
        self.process = process
        self.durable_from = began
        self.begun = began
        self.pending: PendingObject | None = None
        self.closed = False
        self.held_bytes = 0
        self.resumed = False
        self._through_ns = started_ns or UnixNs(0)
        self._number = 0
        self._entries: deque[bytes] = deque()

    @classmethod
    def resume(
        cls, process: str, began: MachineInstant, through_ns: UnixNs, *, number: int
    ) -> "JournalBook":
        """Return the book of a journal of an earlier process, at a number that it may have used."""
        book = cls(process, began, through_ns)
        book.resumed = True
        book._number = number - 1
        return book

    @property
    def waiting(self) -> int:
        """The number of entries that are not durable."""
        return len(self._entries) + (len(self.pending.entries) if self.pending else 0)

    @property
    def has_entries(self) -> bool:
        """Whether an entry is in no object yet."""
        return bool(self._entries)

    def note(self, manifest: bytes) -> None:
        """Add the bytes of an accepted manifest; called before the upload gets its 200."""
        self._entries.append(manifest)
        self.held_bytes += len(manifest)

    def next_object(
        self, answered_ns: UnixNs, now: MachineInstant, *, closes: bool = False
    ) -> PendingObject:
        """Return the object to write: the pending one, or a new one with the noted entries.

        An object that cannot contain all entries repeats the time of the object before it, because
        it does not name every batch that was acknowledged before `answered_ns`. `answered_ns` is
        the store's clock in a response that was received before this call. With `closes` the
        process acknowledges nothing that is not noted now.
        """
        if self.pending is not None:
            return self.pending
        entries = self._take_entries()
        complete = not self._entries
        if complete:
            self._through_ns = answered_ns
        self._number += 1
        header = JournalHeader(
            process=self.process,
            number=self._number,
            complete_through_unix_ns=self._through_ns,
            closed=closes and complete,
            batches=len(entries),
        )
        self.pending = PendingObject(
            number=self._number,
            key=journal_key(self.process, self._number),
            body=encode_journal(header, entries),
            entries=entries,
            began=now,
            closed=header.closed,
        )
        self.begun = now
        return self.pending

    def _take_entries(self) -> tuple[bytes, ...]:
        taken: list[bytes] = []
        size_bytes = 0
        while self._entries and size_bytes < OBJECT_BYTES_MAX:
            taken.append(self._entries.popleft())
            size_bytes += len(taken[-1])
        return tuple(taken)

    def settle(self, written: PendingObject) -> None:
        """Record that the pending object is durable."""
        if self.pending is not written:
            return
        self.pending = None
        self.resumed = False
        self.durable_from = written.began
        self.closed = written.closed
        self.held_bytes -= sum(map(len, written.entries))

    def skip(self, taken: PendingObject) -> None:
        """Give the entries of the pending object another number.

        In a resumed journal an object that exists may be of the earlier process, so it does not
        prove that the entries are durable. At worst they are named twice.
        """
        if self.pending is taken:
            self.pending = None
            self._entries.extendleft(reversed(taken.entries))

    def succeed(self, process: str, began: MachineInstant, started_ns: UnixNs) -> "JournalBook":
        """Return the book of the next registration, with every entry that is not durable.

        This book keeps them too: its closing object must name what it acknowledged.
        """
        after = JournalBook(process, began, started_ns)
        self.move_to(after)
        return after

    def move_to(self, after: "JournalBook") -> None:
        """Note every entry that is not durable in another book too."""
        for manifest in (*(self.pending.entries if self.pending else ()), *self._entries):
            after.note(manifest)


WRITE_RETRY: Final = RetrySettings(tries_max=4, total_s=5.0, backoff_s=0.05, backoff_max_s=0.5)
"""Bounds of one attempt to write; the next second starts another one."""
WRITE_S_MAX: Final = 15.0
"""Time after which an attempt is given up, with an unknown outcome."""
CLOSE_S_MAX: Final = 5.0
"""Time in which a stopping worker must write its last object."""
PAUSE_S: Final = 0.1
"""Time between two checks of the number of entries, and between two objects, at least."""
EARLY_ENTRIES: Final = 64
"""Entries that are written before the interval ends: so an object costs at most one PUT for as many
batches, and the time until they are found does not grow with the rate.
"""
SUPERSEDED_MAX: Final = 4
"""Journals of earlier registrations that wait to be closed."""
SUPERSEDED_S_MAX: Final = 3600.0
"""Age of the newest object of a journal that is still closed after its process was replaced, and of
a registration that is repeated. The registration of an older one may have been removed."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOwner:
    """Whose journal it is.

    `fence_s` is the largest age of the newest durable object when a 200 is decided. `interval_s` is
    the pause between two objects while there is something to report.
    """

    collector_id: str
    acceptance: AcceptanceMode
    fence_s: float = FENCE_S
    interval_s: float = JOURNAL_INTERVAL_S


class UploadJournal(Protocol):
    """The journal of a worker, in either acceptance mode."""

    async def open(self) -> None:
        """Register before the worker accepts connections; it must not serve after an error."""
        ...

    def require_room(self) -> None:
        """Refuse an upload whose batch could not be journaled, before it is stored."""
        ...

    def note(self, manifest: bytes) -> None:
        """Add the manifest of an accepted upload; called before its 200."""
        ...

    async def require_current(self) -> None:
        """Check that a noted batch may get its 200.

        Raises:
            HttpRefusal: It may be accepted; the same bytes may be sent to any gateway.
        """
        ...

    def problem(self) -> str:
        """Return why uploads are refused because of the journal; empty if they are not."""
        ...

    async def run(self) -> None:
        """Write until cancelled."""
        ...

    async def close(self, *, transferred: bool) -> None:
        """Write the last object of a worker; `transferred` if all of its batches are."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """The name of a registration, and the time in it."""

    process: str
    started_ns: UnixNs


class JournalRules(Protocol):
    """The differences between the journals of a worker and of a spool."""

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return the name and time of a registration that is written after `now_ns`."""
        ...

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of an object whose entries are collected after `answered_ns`."""
        ...

    async def begin_object(self, number: int) -> None:
        """Prepare the first try of an object."""
        ...


class StoreRules:
    """The rules of a worker that accepts in the store: its times are those of the responses."""

    def __init__(self, ids: IdSource) -> None:
        self._ids = ids

    async def start(self, now_ns: UnixNs) -> ProcessStart:
        """Return a new name and the time of the response before the registration."""
        return ProcessStart(process=process_name(now_ns, self._ids.ulid()), started_ns=now_ns)

    def through_ns(self, answered_ns: UnixNs) -> UnixNs:
        """Return the time of the response before the entries are collected."""
        return answered_ns

    async def begin_object(self, number: int) -> None:
        """Do nothing: a worker does not survive its process."""


class AcceptanceJournal:
    """The journal of one worker, over the store that accepts."""

    def __init__(
        self,
        store: ObservedStore,
        owner: JournalOwner,
        *,
        rules: JournalRules,
        clock: SuspendAwareClock,
        metrics: GatewayMetrics,
    ) -> None:
        self._store = store
        self._rules = rules
        self._owner = owner
        self._clock = clock
        self._metrics = metrics
        self._backoff = Backoff.seeded_by(clock, WRITE_RETRY)
        self._book = JournalBook("", None)
        self._unsettled: tuple[GatewayProcess, MachineInstant] | None = None
        self._superseded: list[JournalBook] = []
        self._registering = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._closing = False
        self._failure = ""
        metrics.journal_age.set_function(self.age_s)
        metrics.journal_waiting.set_function(lambda: self._book.waiting)

    @property
    def process(self) -> str:
        """The name under which this worker is registered; empty before the first registration."""
        return self._book.process

    @property
    def is_closed(self) -> bool:
        """Whether the last object of this journal is durable."""
        return self._book.closed

    @property
    def is_current(self) -> bool:
        """Whether a batch that is noted may get its 200 now."""
        return not self._closing and not self._must_register_again()

    def age_s(self) -> float:
        """Return the time since the write of the newest durable object began, seconds."""
        began = self._book.durable_from
        return began.seconds_to(machine_now(self._clock)) if began else 0.0

    def problem(self) -> str:
        """Return why this worker cannot write its journal; empty if it can."""
        if self._failure:
            return f"the last write of the acceptance journal failed: {self._failure}"
        if self._must_register_again():
            return (
                f"no object of the acceptance journal was written within {self._owner.fence_s:g} s"
            )
        return ""

    async def open(self) -> None:
        """Register this worker; called before it accepts connections."""
        await self._renew()

    def resume(self, process: str, *, number: int, through_ns: UnixNs) -> None:
        """Continue a journal that an earlier process began, at a number that it may have used."""
        old = self._book
        self._book = JournalBook.resume(
            process, machine_now(self._clock), through_ns, number=number
        )
        old.move_to(self._book)

    def require_room(self) -> None:
        """Refuse an upload if its entry would exceed the memory of the journal."""
        if self._book.held_bytes >= ENTRIES_BYTES_MAX:
            raise HttpRefusal(
                ErrorCode.OVERLOADED,
                "the acceptance journal of this gateway is full: try another gateway",
            )

    def note(self, manifest: bytes) -> None:
        """Add an accepted manifest to the journal; called before the upload gets its 200."""
        self._book.note(manifest)

    async def require_current(self) -> None:
        """Register again if the journal lapsed; called after the entry was noted."""
        if self.is_current:
            return
        if not self._closing:
            try:
                await self._renew()
            except SluiceError as error:
                self._failure = str(error)
                log.warning("journal_not_registered", reason=self._failure)
        if not self.is_current:
            raise HttpRefusal(
                ErrorCode.OUTCOME_UNKNOWN,
                "the gateway cannot write its acceptance journal: send the same bytes again",
            )

    async def run(self) -> None:
        """Write until cancelled; a failed write is repeated with the same number and bytes."""
        while True:
            started_ns = self._clock.monotonic_ns()
            await self.write_due()
            await self._clock.sleep(PAUSE_S)
            due_ns = started_ns + int((self._owner.interval_s - PAUSE_S / 2) * NS_PER_S)
            while self._book.waiting < EARLY_ENTRIES and self._clock.monotonic_ns() < due_ns:
                await self._clock.sleep(PAUSE_S)

    async def write_due(self, *, also_time: bool = False) -> None:
        """Register again, write objects and close older journals, where that is due.

        Entries that are noted meanwhile are left to the next call: an object for each few of them
        would cost more requests than the batches. With `also_time` an object without entries is
        written before a heartbeat is due.
        """
        try:
            if self._must_register_again():
                await self._renew()
            async with self._writing:
                left, due = self._book.waiting, also_time or self._due()
                while due or left > 0:
                    left -= await self._write(self._book)
                    due = False
                await self._close_superseded()
        except SluiceError as error:
            self._failure = str(error)
            self._metrics.journal_failures.inc()
            log.warning(
                "journal_not_written",
                process=self.process,
                waiting=self._book.waiting,
                reason=self._failure,
            )
        else:
            self._failure = ""

    async def flush(self) -> None:
        """Write objects until every noted entry is durable; after an error they are kept."""
        async with self._writing:
            while self._book.waiting:
                await self._write(self._book)

    async def close(self, *, transferred: bool) -> None:
        """Write the last object; called after the last upload ended and `run` was cancelled.

        From here on no upload gets a 200, so the object names every batch of this process.
        """
        self._closing = True
        if not transferred:
            return
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.end()
        except (SluiceError, TimeoutError) as error:
            reason = str(error) or "no time is left"
            log.warning("journal_not_closed", process=self.process, reason=reason)

    async def end(self) -> None:
        """Write the last object of this journal and of earlier ones; after an error, call again."""
        async with self._writing:
            await self._close_superseded()
            if self.process:
                await self._close_book(self._book)

    def _must_register_again(self) -> bool:
        book = self._book
        return book.closed or must_register_again(
            book.durable_from, machine_now(self._clock), self._owner.fence_s
        )

    def _through_ns(self) -> UnixNs:
        """Return the time of an object, from the newest response: it was received before."""
        return self._rules.through_ns(self._store.answered_ns)

    def _due(self) -> bool:
        book = self._book
        if book.pending is not None or book.has_entries:
            return True
        # The next check is an interval later, which may be as long as the heartbeat.
        idle_s = HEARTBEAT_S - self._owner.interval_s / 2
        return book.begun is None or book.begun.seconds_to(machine_now(self._clock)) >= idle_s

    async def _renew(self) -> None:
        """Register, unless a concurrent call did."""
        async with self._registering:
            if self._must_register_again() and self._unsettled is not None:
                await self._register()  # if it began too long ago, another one follows
            if self._must_register_again():
                await self._register()

    async def _register(self) -> None:
        """Register under a new name, or settle the registration before it.

        One whose outcome is unknown may exist, and readers wait for the journal of each that does:
        so it is repeated until it is known, and then closed as any other.
        """
        record, began = self._unsettled_registration() or await self._new_registration()
        self._unsettled = record, began
        await self._create(registration_key(record.process), encode_record(record))
        self._unsettled = None
        started_ns = UnixNs(record.started_at_unix_ns)
        old = self._book  # after the last await: it has every entry that was noted so far
        self._book = old.succeed(record.process, began, started_ns)
        self._metrics.journal_registrations.inc()
        log.info("gateway_registered", process=record.process, replaces=old.process or None)
        if old.process and not old.closed:
            log.warning("journal_lapsed", process=old.process, waiting=old.waiting)
            self._superseded = [*self._superseded, old][-SUPERSEDED_MAX:]

    def _unsettled_registration(self) -> tuple[GatewayProcess, MachineInstant] | None:
        """Return the registration whose outcome is unknown; None if it may have been removed."""
        if (
            self._unsettled
            and self._unsettled[1].seconds_to(machine_now(self._clock)) < SUPERSEDED_S_MAX
        ):
            return self._unsettled
        return None

    async def _new_registration(self) -> tuple[GatewayProcess, MachineInstant]:
        start = await self._rules.start(await read_store_time(self._store))
        record = GatewayProcess(
            collector_id=self._owner.collector_id,
            process=start.process,
            acceptance=self._owner.acceptance,
            started_at_unix_ns=start.started_ns,
        )
        return record, machine_now(self._clock)

    async def _write(self, book: JournalBook, *, closes: bool = False) -> int:
        """Write the next object and return the number of its entries; it stays pending on error."""
        pending = book.next_object(self._through_ns(), machine_now(self._clock), closes=closes)
        await self._rules.begin_object(pending.number)
        while isinstance(await self._create(pending.key, pending.body), Exists) and book.resumed:
            book.skip(pending)
            pending = book.next_object(self._through_ns(), machine_now(self._clock), closes=closes)
            await self._rules.begin_object(pending.number)
        book.settle(pending)
        self._metrics.journal_objects.inc()
        self._metrics.journal_entries.inc(len(pending.entries))
        return len(pending.entries)

    async def _create(self, key: ObjectKey, body: bytes) -> Applied | Exists:
        """Create an object under a key that contains the name of this process.

        The key determines the bytes, so an object that exists is from an earlier try, except in a
        resumed journal.
        """
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                return await create_known(self._store, key, body, self._backoff, retry_unsent=True)
        except TimeoutError as error:
            raise StoreUnavailable("create", key, f"no response in {WRITE_S_MAX:g} s") from error

    async def _close_superseded(self) -> None:
        """Close journals of earlier registrations; a full pass replaces those left open."""
        while self._superseded:
            book = self._superseded[0]
            began = book.durable_from
            if began is not None and began.seconds_to(machine_now(self._clock)) < SUPERSEDED_S_MAX:
                await self._close_book(book)
            self._superseded.remove(book)

    async def _close_book(self, book: JournalBook) -> None:
        while not book.closed:
            await self._write(book, closes=True)
