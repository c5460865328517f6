"""Acceptance journals that the reconciler has not processed yet, read by the query itself.

The caller reads the discovery record first. It names the last processed object of each gateway
process, and a time through which every acknowledged batch is enqueued or held. The registrations
are listed after that: a process that registers later acknowledges later than the listing. The
objects after the processed ones name every batch that a listed process acknowledged up to the time
of the last of them.

The time of a process ends at the first object that is missing or cannot be decoded, and at the
bounds below. What follows is not read, so that no time is claimed for it. Source: ADR 22 and 36.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import (
    GatewayProcess,
    Journal,
    JournalHeader,
    ProcessProgress,
    bounded_through_ns,
    decode_journal,
    decode_journal_header,
    journal_key,
    journal_prefix,
    parse_journal_key,
    parse_registration_key,
)
from sluice_protocol.keys import GATEWAY_PROCESSES
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey, UnixNs
from sluice_store.port import ListedObject, ListPage, ObjectStore

JOURNALS_MAX: Final = 2_000
"""Journal objects that a query reads, divided between the processes."""
JOURNAL_BYTES_MAX: Final = 64 << 20
"""Size of these objects."""
JOURNALS_MIN: Final = 4
"""Journal objects that a query may read of each process, however many processes there are."""
READS_CONCURRENT: Final = 32
"""Small objects that are read concurrently."""
_HEADER_BYTES: Final = 4096
_NEVER: Final = UnixNs(0)
_NOT_LAPSED: Final = UnixNs(2**63 - 1)
"""Time of the newest object of a process that cannot count as lapsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalTails:
    """What the journal objects after the processed ones contain.

    The manifests are copies, which prove nothing.
    """

    processes: tuple[ProcessProgress, ...] = ()
    manifests: tuple[AcceptedManifest, ...] = ()


async def list_registrations(store: ObjectStore) -> list[ListedObject]:
    """List the registrations of gateway processes."""
    found: list[ListedObject] = []
    async for page in store.list(GATEWAY_PROCESSES):
        found += [one for one in page.objects if _is_registration(one.key)]
    return found


def _is_registration(key: ObjectKey) -> bool:
    try:
        parse_registration_key(key)
    except InvalidRecord:
        return False
    return True


async def read_journal_tails(
    store: ObjectStore, registrations: Sequence[ListedObject], processed: Mapping[str, int]
) -> JournalTails:
    """Read the journal objects of registered processes after the processed ones.

    `processed` maps a process to the number of its last processed object, as read before the
    listing.
    """
    share = max(len(registrations), 1)
    reader = _TailReader(
        store=store,
        objects_max=max(JOURNALS_MAX // share, JOURNALS_MIN),
        bytes_max=JOURNAL_BYTES_MAX // share,
        limit=asyncio.Semaphore(READS_CONCURRENT),
    )
    reads = (
        reader.read(one, processed.get(parse_registration_key(one.key), 0)) for one in registrations
    )
    found = [tail for tail in await asyncio.gather(*reads) if tail is not None]
    return JournalTails(
        processes=tuple(tail.progress for tail in found),
        manifests=tuple(one for tail in found for one in tail.manifests),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tail:
    progress: ProcessProgress
    manifests: tuple[AcceptedManifest, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Newest:
    """What is known about the newest object of a process.

    The header is that of the last processed object, None if there is none or it is missing. The
    times are the Last-Modified of this object and of the newest one.
    """

    newest_ns: UnixNs
    header: JournalHeader | None = None
    header_written_ns: UnixNs = _NEVER


@dataclass(frozen=True, slots=True, kw_only=True)
class _TailReader:
    """Reads the journal of one process after another within bounds."""

    store: ObjectStore
    objects_max: int
    bytes_max: int
    limit: asyncio.Semaphore

    async def read(self, listed: ListedObject, processed: int) -> _Tail | None:
        """Return what a process journaled after an object; None if it is removed by now."""
        process = parse_registration_key(listed.key)
        async with self.limit:
            read = await self.store.get(listed.key)
        if not isinstance(read, Found):
            return None  # removed since the listing: the reconciler had retired it long before
        try:
            registration = decode_record(listed.key, read.body, GatewayProcess)
        except InvalidRecord:
            return _Tail(progress=_unreadable(process))
        page = await self._list(process, processed)
        chosen = self._choose(page, processed)
        journals = await self._read_journals([one.key for one in chosen])
        newest = _Newest(newest_ns=_newest_ns(listed, page))
        if processed and not journals:
            newest = await self._read_processed(journal_key(process, processed), newest.newest_ns)
        header, written_ns = newest.header, newest.header_written_ns
        if journals:
            header = journals[-1].header
            written_ns = chosen[len(journals) - 1].last_modified_ns
        complete_ns = registration.started_at_unix_ns
        if header is not None:
            complete_ns = bounded_through_ns(header, written_ns)
        progress = ProcessProgress(
            collector_id=registration.collector_id,
            process=process,
            acceptance=registration.acceptance,
            complete_through_ns=UnixNs(complete_ns),
            newest_ns=newest.newest_ns,
            closed=header is not None and header.closed and len(journals) == len(page.objects),
        )
        return _Tail(
            progress=progress, manifests=tuple(one for each in journals for one in each.manifests)
        )

    async def _list(self, process: str, processed: int) -> ListPage:
        """Return the first page of the objects after the processed ones."""
        after = journal_key(process, processed) if processed else ""
        async with self.limit:
            return await anext(aiter(self.store.list(journal_prefix(process), start_after=after)))

    def _choose(self, page: ListPage, processed: int) -> list[ListedObject]:
        """Return the next objects without a gap, within the bounds."""
        chosen: list[ListedObject] = []
        size_bytes = 0
        for one in page.objects[: self.objects_max]:
            size_bytes += one.size_bytes
            # At least one is read, so that a large object does not stop every query.
            if chosen and size_bytes > self.bytes_max:
                break
            if _number_of(one.key) != processed + len(chosen) + 1:
                break
            chosen.append(one)
        return chosen

    async def _read_journals(self, keys: Sequence[ObjectKey]) -> list[Journal]:
        """Return the decoded objects up to the first that is missing or malformed."""
        found: list[Journal] = []
        for journal in await asyncio.gather(*map(self._read_journal, keys)):
            if journal is None:
                break
            found.append(journal)
        return found

    async def _read_journal(self, key: ObjectKey) -> Journal | None:
        async with self.limit:
            read = await self.store.get(key)
        if not isinstance(read, Found):
            return None
        try:
            return decode_journal(key, read.body)
        except InvalidRecord:
            return None

    async def _read_processed(self, key: ObjectKey, newest_ns: UnixNs) -> _Newest:
        """Read the header of the last processed object, when no later one could be read."""
        async with self.limit:
            read = await self.store.get(key, first=0, last=_HEADER_BYTES - 1)
        if not isinstance(read, Found):
            return _Newest(newest_ns=_NOT_LAPSED)
        newest_ns = max(newest_ns, read.info.last_modified_ns)
        try:
            header = decode_journal_header(key, read.body)
        except InvalidRecord:
            return _Newest(newest_ns=newest_ns)
        return _Newest(
            header=header, header_written_ns=read.info.last_modified_ns, newest_ns=newest_ns
        )


def _newest_ns(listed: ListedObject, page: ListPage) -> UnixNs:
    if not page.last:
        return _NOT_LAPSED  # further objects exist, which are newer
    return max([listed.last_modified_ns, *(one.last_modified_ns for one in page.objects)])


def _number_of(key: ObjectKey) -> int | None:
    try:
        return parse_journal_key(key).number
    except InvalidRecord:
        return None


def _unreadable(process: str) -> ProcessProgress:
    """Return the progress of a process whose registration cannot be decoded: none."""
    return ProcessProgress(
        collector_id="unknown",
        process=process,
        acceptance="s3_manifest",
        complete_through_ns=UnixNs(0),
        newest_ns=_NOT_LAPSED,
    )
