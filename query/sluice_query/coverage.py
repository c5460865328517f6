"""How complete an answer is: accepted batches that the queue and the lake cannot show yet.

The order of reading matters: discovery record, registrations of gateways, then journals and hold
records, and only then the queue. Whatever moves in between is found by a later read:

- A batch that was enqueued or held before the discovery record was written is in the queue, in the
  lake or in a hold record, which are read later. A hold is released after the batch is enqueued.
- Any other batch of a journal is named in an object after the processed ones, which are read here.
  Objects are removed long after they are processed.
- A process that is missing from the listing of registrations acknowledges only after it.

So the answer contains every batch that was acknowledged before the frontier of these reads, or a
reason counts it. A record that is younger than `FRESH_S` is the frontier: its reconciler works.

`accepted/` is listed while it is small, or while the named agents have few batches, if no journals
name new batches or if a gateway that accepts in the store is late. A batch of a killed gateway is
then counted immediately. Otherwise the discovery record decides. Source: ADR 22 and 36.

The rule, in `decide_completeness`: an answer is partial if its range ends more than
`max_staleness_s` after the time through which it is known to be complete, and the reason names what
it waits for.

A query reads the acceptance journals that the reconciler has not processed yet. The discovery
record names the last processed object of each gateway process, and a time through which every
acknowledged batch is enqueued or held. The registrations are listed after it: a process that
registers later acknowledges later than the listing. The objects after the processed ones name every
batch that a listed process acknowledged up to the time of the last of them.

The time of a process ends at the first object that is missing or cannot be decoded, and at the
bounds below. What follows is not read, so that no time is claimed for it. Source: ADR 22 and 36.
"""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from sluice_protocol.authority import VISIBILITY_S_MAX, Authority
from sluice_protocol.errors import InvalidRecord, SluiceError
from sluice_protocol.identity import Identity
from sluice_protocol.journals import (
    DISCOVERY,
    DiscoveryRecord,
    GatewayProcess,
    Journal,
    JournalHeader,
    ProcessProgress,
    bounded_through_ns,
    decide_frontier,
    decode_journal,
    decode_journal_header,
    ended_processes,
    journal_key,
    journal_prefix,
    parse_journal_key,
    parse_registration_key,
)
from sluice_protocol.keys import (
    ACCEPTED,
    GATEWAY_PROCESSES,
    INGEST_QUEUE,
    RECONCILER,
    accepted_key,
    agent_prefix,
    lane_of,
)
from sluice_protocol.manifests import AcceptedManifest, decode_record
from sluice_protocol.outcomes import Found
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_query.pending import HeldBatch, PendingSnapshot, find_manifest, may_match, read_held
from sluice_query.request import Query
from sluice_query.settings import QuerySettings
from sluice_store.authority import read_authority
from sluice_store.port import ListedObject, ListPage, ObjectStore, run_together

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
        for one in page.objects:
            with suppress(InvalidRecord):
                parse_registration_key(one.key)
                found.append(one)
    return found


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
    found = [tail for tail in await run_together(*reads) if tail is not None]
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
        after = journal_key(process, processed) if processed else ""
        async with self.limit:
            listing = self.store.list(journal_prefix(process), start_after=after)
            page = await anext(aiter(listing))
        chosen = self._choose(page, processed)
        journals = await self._read_journals([one.key for one in chosen])
        newest = _Newest(newest_ns=_NOT_LAPSED)  # unless no further objects exist, which are newer
        if page.last:
            times = (one.last_modified_ns for one in (listed, *page.objects))
            newest = _Newest(newest_ns=max(times))
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
        for journal in await run_together(*map(self._read_journal, keys)):
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


_LANE: Final = re.compile(r"(?P<lane>[0-9]{3})(\.[0-9]+)?", re.ASCII)
NEW_MAX: Final = 256
"""Manifests created since the last discovery that a query reads."""
_APPEARANCE_NS: Final = (VISIBILITY_S_MAX + 1) * NS_PER_S
"""The longest delay between a manifest's time and its appearance; S3 times are whole seconds."""
NAMED_MAX: Final = 5
"""Late gateways that a reason names; further ones are counted."""
FRESH_S: Final = 3.0
"""Age of a discovery record up to which a query reads no journals."""


_NO_PASS: Final = UnixNs(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatch:
    """An accepted batch that the discovery record does not cover.

    Its time is that of the manifest's creation, by the store's clock.
    """

    manifest: AcceptedManifest
    created_ns: UnixNs


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was known about accepted batches before the queue was read.

    Attributes:
        now_ns: The store's clock before anything else was read; None if it could not be read.
        discovered_ns: Every batch that was acknowledged before this time is enqueued, held, or
            among `named`.
        open_processes: The gateway processes whose reports bound that time, the latest last; empty
            if journals were not read.
        in_other_spool: Whether batches are accepted in a spool that this query does not search.
        named: Batches that may match and that journals name; the queue may contain them by now.
        new: Batches created since `discovered_ns`; None if they were not listed: journals name
            them, or they are too many.
        lanes: Lanes of the ingest queue that the reconciler gave batches to, three digits each.
        pass_began_ns: When the last complete full pass began; 0 if none is known.
    """

    now_ns: UnixNs | None = None
    discovered_ns: UnixNs | None = None
    held_by: str | None = None
    open_processes: tuple[ProcessProgress, ...] = ()
    in_other_spool: bool = False
    held: tuple[HeldBatch, ...] = ()
    named: tuple[AcceptedManifest, ...] = ()
    new: tuple[NewBatch, ...] | None = None
    problems: tuple[str, ...] = ()
    lanes: frozenset[str] = frozenset()
    pass_began_ns: UnixNs = _NO_PASS
    authority: Authority | None = None

    def incomplete_lanes(self, pending: PendingSnapshot) -> tuple[str, ...]:
        """Return a sentence for each lane whose register is missing, or was rebuilt recently.

        A lane that was rebuilt is given its batches again by the full passes that began later.
        """
        lost = sorted(self.lanes - {f"{lane:03d}" for lane in pending.lanes})
        again = sorted(lane for lane, at in pending.rebuilt.items() if at >= self.pass_began_ns)
        return (
            *(f"the register of lane {lane} is missing: run `sluice rebuild`" for lane in lost),
            *(
                f"lane {lane:03d} was rebuilt, and is given its batches again: wait for a full pass"
                " of the reconcilers"
                for lane in again
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Completeness:
    """How complete an answer is.

    Attributes:
        accepted_until_ns: Every batch acknowledged before this time of the store's clock is in the
            answer if it matches; None if no such time is known.
        held_by: The gateway and process that hold that time back, if the answer is partial and one
            does. A gateway that only reported seconds ago is idle or works; it holds nothing back.
    """

    accepted_until_ns: UnixNs | None = None
    is_now: bool = False
    held_by: str | None = None
    reasons: tuple[str, ...] = ()


async def read_coverage(
    store: ObjectStore,
    query: Query,
    settings: QuerySettings,
    *,
    with_spool: bool,
    lists: bool = True,
) -> Coverage:
    """Read what is known about accepted batches; call it before the queue is read.

    What cannot be read makes the result partial; it does not stop the query.
    """
    try:
        discovery = await _read_discovery(store)
        registrations = await list_registrations(store)
        with_journals = bool(registrations) and discovery.journaled
        authority, (held, problems), new, lanes, tails = await run_together(
            read_authority(store),
            read_held(store, query, settings),
            _read_new(store, query, settings, discovery, listed=lists and not with_journals),
            _list_given_lanes(store),
            _read_tails(store, registrations, discovery),
        )
    except SluiceError as error:
        return Coverage(problems=(str(error),))
    through = _decide_through(
        discovery.now_ns,
        discovery.record,
        tails,
        lanes={lane_of(agent, authority.lanes) for agent in query.agents},
        layout=authority.layout,
        spool_ns=int(settings.transferred_s * NS_PER_S) if with_spool else None,
    )
    if with_journals and _may_list_for(through, discovery.now_ns, settings):
        new = await _read_new(store, query, settings, discovery, listed=lists)
    manifests = tails.manifests if tails else ()
    named = {one.identity: one for one in manifests if may_match(one, query)}
    held_keys = {one.key for one in held}
    return Coverage(
        now_ns=discovery.now_ns,
        discovered_ns=through.at_ns,
        held_by=through.held_by,
        open_processes=through.open_processes,
        in_other_spool=(
            authority.acceptance == "local_spool" and not with_spool and not with_journals
        ),
        held=held,
        named=tuple(one for who, one in named.items() if accepted_key(who) not in held_keys),
        new=new,
        problems=problems,
        lanes=lanes,
        pass_began_ns=discovery.pass_began_ns,
        authority=authority,
    )


async def _read_tails(
    store: ObjectStore, registrations: Sequence[ListedObject], discovery: "_Discovery"
) -> JournalTails | None:
    """Return what journals name after the record, or None if the record is fresh.

    If no gateway holds the record's time back, the journals may show that none is open: then the
    answer is complete now.
    """
    if discovery.record is None:
        return await read_journal_tails(store, registrations, {})
    fresh_ns = discovery.now_ns - int(FRESH_S * NS_PER_S)
    is_held = not discovery.journaled or discovery.record.held_by is not None
    if is_held and discovery.record.complete_through_unix_ns >= fresh_ns:
        return None
    return await read_journal_tails(store, registrations, discovery.record.journals)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Through:
    """The time through which every acknowledged batch is accounted for, and what bounds it."""

    at_ns: UnixNs | None
    held_by: str | None = None
    open_processes: tuple[ProcessProgress, ...] = ()


def _may_list_for(through: _Through, now_ns: UnixNs, settings: QuerySettings) -> bool:
    """Return True if a listing shows what late gateways have not reported.

    What a spool accepted is not in the store yet, so no listing shows it.
    """
    needed_ns = now_ns - int(settings.max_staleness_s * NS_PER_S)
    late = [one for one in through.open_processes if one.complete_through_ns < needed_ns]
    return bool(late) and all(one.acceptance == "s3_manifest" for one in late)


def _decide_through(
    now_ns: UnixNs,
    record: DiscoveryRecord | None,
    tails: JournalTails | None,
    *,
    lanes: Collection[int],
    layout: int,
    spool_ns: int | None,
) -> _Through:
    """Return the later of two times: that of the discovery record, and that of the journals.

    Everything that was acknowledged before the record's time is enqueued or held. So the record
    replaces the journal of a lapsed process as a full pass does. Without a discovery record,
    batches older than the journals may be missing; without `tails`, it is fresh. `spool_ns` is how
    long a searched spool shows a transferred batch; None without a spool. An empty `lanes` means
    all, of the layout of the authority.
    """
    if record is None:
        return _Through(at_ns=None)
    recorded_ns = record.complete_through_unix_ns
    if lanes:
        recorded_ns = min(record.lane_time(lane, layout) for lane in lanes)
    passed_ns = max(recorded_ns, record.pass_began_unix_ns or 0)
    processes: Sequence[ProcessProgress] = tails.processes if tails else ()
    if spool_ns is not None:
        if passed_ns < now_ns - spool_ns:
            # Batches transferred in between are in neither: the spool shows only recent transfers.
            return _Through(at_ns=None)
        # What a spool accepted is read from the spool.
        processes = [one for one in processes if one.acceptance != "local_spool"]
    if tails is None or record.journaled_since_unix_ns is None:
        return _Through(at_ns=UnixNs(recorded_ns), held_by=record.held_by)
    # Without a registered process nothing is open: one that registers later acknowledges later.
    frontier = decide_frontier(now_ns, processes, UnixNs(passed_ns))
    by = frontier.held_by
    ended = ended_processes(processes, UnixNs(passed_ns))
    bounds = [one for one in processes if one.process not in ended]
    return _Through(
        at_ns=max(frontier.complete_through_ns, UnixNs(recorded_ns)),
        held_by=None if by is None else _name(by),
        open_processes=tuple(sorted(bounds, key=lambda one: one.complete_through_ns)),
    )


def _name(process: ProcessProgress) -> str:
    return f"{process.collector_id} (process {process.process})"


async def _list_given_lanes(store: ObjectStore) -> frozenset[str]:
    prefix = f"{RECONCILER}lanes/{INGEST_QUEUE}."
    keys = [one.key async for page in store.list(prefix) for one in page.objects]
    matches = (_LANE.fullmatch(key.removeprefix(prefix)) for key in keys)
    return frozenset(one["lane"] for one in matches if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discovery:
    now_ns: UnixNs
    through_ns: UnixNs | None = None
    listed: int = 0
    record: DiscoveryRecord | None = None

    @property
    def pass_began_ns(self) -> UnixNs:
        """When the last complete full pass began; 0 if none is known."""
        return UnixNs((self.record and self.record.pass_began_unix_ns) or _NO_PASS)

    @property
    def existed_ns(self) -> UnixNs | None:
        """The time at which every existing manifest was enqueued or held, acknowledged or not."""
        if self.record is None or self.record.pass_began_unix_ns is None:
            return self.through_ns
        return UnixNs(self.record.pass_began_unix_ns)

    @property
    def journaled(self) -> bool:
        """Whether every gateway is known to write a journal."""
        return self.record is not None and self.record.journaled_since_unix_ns is not None


async def _read_discovery(store: ObjectStore) -> _Discovery:
    read = await store.get(DISCOVERY)
    if not isinstance(read, Found):
        return _Discovery(now_ns=read.date_ns)
    try:
        record = decode_record(DISCOVERY, read.body, DiscoveryRecord)
    except InvalidRecord:
        return _Discovery(now_ns=read.info.date_ns)
    through_ns = UnixNs(record.complete_through_unix_ns)
    return _Discovery(
        now_ns=read.info.date_ns,
        through_ns=through_ns,
        listed=record.listed,
        record=record,
    )


async def _read_new(
    store: ObjectStore,
    query: Query,
    settings: QuerySettings,
    discovery: _Discovery,
    *,
    listed: bool,
) -> tuple[NewBatch, ...] | None:
    """Return the batches created since the last discovery, or None if they are too many."""
    created = await _list_new(store, query, settings, discovery) if listed else None
    if created is None:
        return None
    limit = asyncio.Semaphore(settings.fetches)

    async def read(one: ListedObject) -> NewBatch | None:
        async with limit:
            manifest = await find_manifest(store, one.key)
        if manifest is None:
            return None  # not a batch; the reconciler holds it
        return NewBatch(manifest=manifest, created_ns=one.last_modified_ns)

    found = await run_together(*map(read, created))
    return tuple(one for one in found if one is not None)


async def _list_new(
    store: ObjectStore, query: Query, settings: QuerySettings, discovery: _Discovery
) -> list[ListedObject] | None:
    left = settings.accepted_list_max
    if discovery.listed > left and not query.agents:
        return None
    new: list[ListedObject] = []
    # A manifest that became visible after the pass listed its key may have an earlier time.
    since_ns = 0 if discovery.existed_ns is None else discovery.existed_ns - _APPEARANCE_NS
    for prefix in [agent_prefix(agent) for agent in query.agents] or [ACCEPTED]:
        async for page in store.list(prefix):
            left -= len(page.objects)
            new += [one for one in page.objects if one.last_modified_ns >= since_ns]
            if left < 0 or len(new) > NEW_MAX:
                return None
    return new


def decide_completeness(
    coverage: Coverage, query: Query, settings: QuerySettings, shown: Collection[Identity]
) -> Completeness:
    """Decide up to which time an answer is complete, and why it is partial.

    `shown` are the batches in the queue, in the lake, or in a searched spool.
    """
    reasons = list(coverage.problems)
    if coverage.held:
        first = coverage.held[0]
        count = f"{len(coverage.held)} {'batch is' if len(coverage.held) == 1 else 'batches are'}"
        reasons.append(
            f"{count} held back: see `sluice reconciler status`,"
            f" reason=`{first.reason}`, key=`{first.key}`"
        )
    if coverage.now_ns is None:
        return Completeness(reasons=tuple(reasons))
    if coverage.in_other_spool:
        reasons.append("batches in the gateway's spool are not searched: pass its --spool")
        return Completeness(reasons=tuple(reasons))
    needed_ns = min(query.to_ns, UnixNs(coverage.now_ns - int(settings.max_staleness_s * NS_PER_S)))
    until_ns, missing, held_by = coverage.discovered_ns, 0, coverage.held_by
    if coverage.new is not None:
        held = {one.key for one in coverage.held}
        absent = [
            one
            for one in coverage.new
            if one.manifest.identity not in shown
            and accepted_key(one.manifest.identity) not in held
            and may_match(one.manifest, query)
        ]
        until_ns = min([coverage.now_ns, *(one.created_ns for one in absent)])
        held_by = None
        missing = len(absent)
    if missing:
        batches = "batch is" if missing == 1 else "batches are"
        remedy = _late(coverage, needed_ns) or "wait for the reconciler, or start it"
        reasons.append(f"{missing} accepted {batches} not enqueued yet: {remedy}")
    elif reason := _staleness(until_ns, coverage, needed_ns):
        reasons.append(reason)
    return Completeness(
        accepted_until_ns=until_ns,
        is_now=not reasons and until_ns is not None and until_ns >= coverage.now_ns,
        held_by=held_by if reasons else None,
        reasons=tuple(reasons),
    )


def _staleness(until_ns: UnixNs | None, coverage: Coverage, needed_ns: UnixNs) -> str | None:
    """Return why an answer that is complete up to a time is partial, or None."""
    if until_ns is None:
        return "accepted batches may be missing: no recent full pass of a reconciler is known"
    if until_ns >= needed_ns:
        return None
    missing = f"batches accepted after {format_rfc3339(until_ns)} may be missing"
    late = _late(coverage, needed_ns)
    return f"{missing}: {late or _LAST_LISTING}"


def _late(coverage: Coverage, needed_ns: UnixNs) -> str:
    """Return which gateways an answer waits for, and what to do; empty if it waits for none."""
    late = [one for one in coverage.open_processes if one.complete_through_ns < needed_ns]
    names = [_name(one) for one in late] or [one for one in [coverage.held_by] if one]
    if not names:
        return ""
    spooled = any(one.acceptance == "local_spool" for one in late)
    return f"{_not_reported(names)}; {_REPORTS if spooled else _FINDS}"


_LAST_LISTING: Final = "the last full pass of a reconciler began then; check that one runs"
_FINDS: Final = (
    "if it is gone, a reconciler finds its batches: check that one runs"
    " (`sluice reconciler status`)"
)
_REPORTS: Final = "a gateway with a spool reports them when it runs: start it"


def _not_reported(names: Sequence[str]) -> str:
    """Return which gateways have not reported, the latest first."""
    shown = ", ".join(names[:NAMED_MAX])
    if len(names) == 1:
        return f"gateway {shown} has not reported since"
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"gateways {shown}{more} have not reported since"
