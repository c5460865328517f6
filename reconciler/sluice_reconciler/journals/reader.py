"""Reading registrations and journal objects of gateway processes.

The next object of a process is read by its number: one GET a poll finds it or shows that there is
none yet. Only a process that is silent for longer than its heartbeat is listed, because only a
listing shows that no newer object exists. The number of requests depends on the number of open
processes and of their objects, never on the number of manifests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import (
    LATE_S,
    GatewayProcess,
    Journal,
    bounded_through_ns,
    decode_journal,
    journal_key,
    journal_prefix,
    parse_journal_key,
    parse_registration_key,
    registration_key,
)
from sluice_protocol.keys import GATEWAY_PROCESSES
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.journals.progress import BrokenJournal, ProcessJournal
from sluice_store.port import ListPage, ObjectStore

log = structlog.get_logger()

SILENT_S: Final = LATE_S
"""Time without a new object after which a process is listed, and between two such listings."""
ENTRY_BYTES: Final = 1024
"""About the memory of an entry without parts."""
OBJECTS_MAX: Final = 64
"""Objects of one process that one poll reads, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalObject:
    """A journal object as it was read, with its Last-Modified and the store's clock then."""

    number: int
    journal: Journal
    written_ns: UnixNs
    date_ns: UnixNs

    @property
    def manifests(self) -> tuple[AcceptedManifest, ...]:
        """The accepted manifests that it names."""
        return self.journal.manifests

    @property
    def complete_through_ns(self) -> UnixNs:
        """The time through which it proves completeness."""
        return bounded_through_ns(self.journal.header, self.written_ns)


def entry_weight(manifest: AcceptedManifest) -> int:
    """Return how many plain entries need as much memory as one with these parts."""
    return 1 + len(manifest.parts or "") // ENTRY_BYTES


def is_cut_short(objects: Sequence[JournalObject], entries_max: int) -> bool:
    """Return True if reading stopped at a limit, so that more objects may exist."""
    entries = sum(entry_weight(one) for each in objects for one in each.manifests)
    return len(objects) >= OBJECTS_MAX or entries >= entries_max


class RegistrationReader:
    """Reads each registration once, and remembers it while it is listed."""

    def __init__(self, store: ObjectStore, requests: RequestLimit) -> None:
        self._store = store
        self._requests = requests
        self._known: dict[str, tuple[GatewayProcess, UnixNs]] = {}
        self._unreadable: set[ObjectKey] = set()

    async def read(self) -> dict[str, tuple[GatewayProcess, UnixNs]]:
        """Return every registered process with the Last-Modified of its registration."""
        listed: dict[str, UnixNs] = {}
        async for page in self._store.list(GATEWAY_PROCESSES):
            listed |= self._processes_of(page)
        new = [process for process in listed if process not in self._known]
        found = await self._requests.each(new, self._read_one)
        read = {one.process: (one, listed[one.process]) for one in found if one is not None}
        self._known = {
            process: known for process, known in self._known.items() if process in listed
        } | read
        return self._known

    def _processes_of(self, page: ListPage) -> dict[str, UnixNs]:
        found: dict[str, UnixNs] = {}
        for one in page.objects:
            try:
                found[parse_registration_key(one.key)] = one.last_modified_ns
            except InvalidRecord as error:
                self._report(one.key, error.reason)
        return found

    async def _read_one(self, process: str) -> GatewayProcess | None:
        key = registration_key(process)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return None  # removed since the listing
        try:
            found = decode_record(key, read.body, GatewayProcess)
        except InvalidRecord as error:
            self._report(key, error.reason)
            return _unreadable(process)
        return found if found.process == process else _unreadable(process)

    def _report(self, key: ObjectKey, reason: str) -> None:
        if key not in self._unreadable:
            self._unreadable.add(key)
            log.warning("gateway_registration_unreadable", key=key, reason=reason)


def _unreadable(process: str) -> GatewayProcess:
    """Return a registration in place of one that cannot be read: it holds the frontier back."""
    return GatewayProcess(
        collector_id="unreadable registration",
        process=process,
        acceptance="s3_manifest",
        started_at_unix_ns=int(process[:20]),
    )


class JournalReader:
    """Reads the next objects of journals."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def read_next(self, journal: ProcessJournal, entries_max: int) -> list[JournalObject]:
        """Return the objects after the last one that was read, in order and without a gap.

        A missing or unreadable object makes the journal `broken`. `silent_at_ns` and `broken` of
        the journal are updated. No object is read after entries of the weight `entries_max`.
        """
        found: list[JournalObject] = []
        entries, number = 0, journal.read_through
        while len(found) < OBJECTS_MAX and entries < entries_max and journal.broken is None:
            number += 1
            one = await self._read(journal, number)
            if one is None:
                break
            found.append(one)
            entries += sum(map(entry_weight, one.manifests))
            if one.journal.header.closed:
                break
        return found

    async def read_again(
        self, journal: ProcessJournal, number: int
    ) -> tuple[AcceptedManifest, ...] | None:
        """Return what an object names that was read before; None if it does not exist any more."""
        key = journal_key(journal.process, number)
        read = await self._store.get(key)
        try:
            if isinstance(read, Found):
                return decode_journal(key, read.body).manifests
            reason = "an object that was read before is missing"
        except InvalidRecord as error:
            reason = error.reason
        self._log_broken(journal, number, reason)
        return None

    async def _read(self, journal: ProcessJournal, number: int) -> JournalObject | None:
        key = journal_key(journal.process, number)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            await self._inspect_silence(journal, number, read.date_ns)
            return None
        written_ns = read.info.last_modified_ns
        try:
            decoded = decode_journal(key, read.body)
        except InvalidRecord as error:
            journal.written_ns = max(journal.written_ns, written_ns)
            self._break(journal, number + 1, written_ns, error.reason)
            return None
        return JournalObject(
            number=number, journal=decoded, written_ns=written_ns, date_ns=read.info.date_ns
        )

    async def _inspect_silence(self, journal: ProcessJournal, number: int, date_ns: UnixNs) -> None:
        """List a process that should have written; nothing is concluded from a GET alone."""
        since_ns = max(journal.written_ns, journal.silent_at_ns)
        if date_ns - since_ns < SILENT_S * NS_PER_S:
            return
        after = journal_key(journal.process, number - 1)
        pages = [
            page
            async for page in self._store.list(journal_prefix(journal.process), start_after=after)
        ]
        listed = [one for page in pages for one in page.objects if _number_of(one.key)]
        if not listed:
            journal.silent_at_ns = date_ns
            return
        first = _number_of(listed[0].key)
        journal.written_ns = max(journal.written_ns, *(one.last_modified_ns for one in listed))
        if first > number:
            self._break(journal, first, listed[0].last_modified_ns, "an object is missing")

    def _break(
        self, journal: ProcessJournal, next_number: int, appeared_ns: UnixNs, reason: str
    ) -> None:
        journal.broken = BrokenJournal(
            next_number=next_number, appeared_ns=appeared_ns, reason=reason
        )
        self._log_broken(journal, journal.read_through + 1, reason)

    def _log_broken(self, journal: ProcessJournal, number: int, reason: str) -> None:
        log.warning(
            "journal_broken",
            gateway=journal.registration.collector_id,
            process=journal.process,
            number=number,
            reason=reason,
        )


def _number_of(key: ObjectKey) -> int:
    """Return the number in a key of a journal object, 0 for any other key."""
    try:
        return parse_journal_key(key).number
    except InvalidRecord:
        return 0
