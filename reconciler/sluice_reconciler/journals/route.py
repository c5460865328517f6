"""The journal route: it reads what gateways journaled, enqueues it, and publishes the frontier.

The steps of a pass over the journals. After a crash between two of them, the next repeats work:

    1 read the discovery record, and list the registrations.
    2 read the next journal objects.
    3 pass their entries to the pipeline.
    4 publish the frontier and the numbers.

A number is published only after step 3, so a crash repeats work and never skips any. The frontier
of a lane is `decide_frontier` over what was processed in that lane, with the store's clock from
before the listing of step 1.

Entries of a lane that another reconciler works on are pending until it publishes a later time
of the lane. If lanes are shared, only the lane is remembered, and the object is read again if the
lane is handed over. If not, the entries are kept and processed after `takeover_after_s`.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import structlog

from sluice_protocol.errors import SluiceError, StoreError
from sluice_protocol.journals import (
    JOURNAL_REPLACED_AFTER_S,
    LATE_S,
    Frontier,
    ProcessProgress,
    decide_frontier,
    ended_processes,
)
from sluice_protocol.keys import accepted_key, lane_of
from sluice_protocol.manifests import AcceptedManifest
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.context import ReconcilerContext
from sluice_reconciler.discovery import (
    IDLE_STEP_S,
    DiscoveryClaim,
)
from sluice_reconciler.journals.progress import (
    BREAK_MARGIN_S,
    ProcessJournal,
    UnprocessedObject,
    entries_pending,
    holder_text,
    lanes_left,
)
from sluice_reconciler.journals.reader import (
    OBJECTS_MAX,
    JournalObject,
    JournalReader,
    RegistrationReader,
    entry_weight,
    is_cut_short,
)
from sluice_reconciler.loop_health import Loop
from sluice_reconciler.metrics import Stage
from sluice_reconciler.pipeline import BatchPipeline, PipelineResult
from sluice_store.authority import read_history

log = structlog.get_logger()

GATEWAYS_LABELLED: Final = 100
"""Gateways with a separate label, at most."""
OTHER_GATEWAYS: Final = "(other)"
"""The label that the other gateways share."""
LOOK_BACK_MAX: Final = 200_000
"""The largest store, in manifests, in which a pass begins as soon as a process is late. It lists
200 pages at most; in a larger store only the pass that replaces the journal looks for its batches.
"""
ACKNOWLEDGED_S: Final = 120.0
"""Time from the acceptance of a batch until its gateway has acknowledged or abandoned it. An entry
is journaled only with the acknowledgement."""


def wanted_pass_ns(
    journals: Iterable[ProcessJournal], ended: Collection[str], now_ns: UnixNs, manifests: int
) -> UnixNs | None:
    """Return when a full pass must begin to replace a journal; None if none is needed now.

    `ended` are the processes whose journals no longer bound the frontier; `manifests` is what the
    last full pass listed.
    """
    times = (at for one in journals for at in _replaced_from_ns(one, ended, manifests))
    return max((at for at in times if at <= now_ns), default=None)


def _replaced_from_ns(
    journal: ProcessJournal, ended: Collection[str], manifests: int
) -> Iterator[UnixNs]:
    """Yield when a full pass may begin, for each reason for one.

    A pass that begins when a process is late finds what a killed gateway has not reported. Only one
    that begins after `JOURNAL_REPLACED_AFTER_S` proves that nothing more follows.
    """
    if journal.process not in ended:
        if journal.is_replaced():
            yield UnixNs(journal.written_ns + int(JOURNAL_REPLACED_AFTER_S * NS_PER_S))
        elif journal.is_silent(LATE_S) and manifests <= LOOK_BACK_MAX:
            yield UnixNs(journal.written_ns + int(LATE_S * NS_PER_S))
    if journal.broken is not None:
        yield journal.broken.healed_from_ns
    for one in journal.pending:
        if one.lost:
            yield UnixNs(one.written_ns + int(BREAK_MARGIN_S * NS_PER_S))


def named_through(journals: Iterable[ProcessJournal], ended: Collection[str]) -> dict[str, float]:
    """Return the time through which the journals of each gateway name what it accepted, Unix ns.

    It is infinite if all processes of the gateway have ended, because nothing further is named.
    Call it before the lanes are read.
    """
    through: dict[str, float] = {}
    for journal in journals:
        name = journal.registration.collector_id
        is_over = journal.process in ended or journal.is_replaced()
        at_ns = float("inf") if is_over else journal.complete_through_ns
        through[name] = min(through.get(name, float("inf")), at_ns)
    return through


def count_unnamed(through_ns: Mapping[str, float], batches: Iterable[AcceptedManifest]) -> int:
    """Return how many new batches a journal should have named, by `named_through`."""
    margin_ns = ACKNOWLEDGED_S * NS_PER_S
    return sum(
        one.accepted_at_unix_ns + margin_ns < through_ns.get(one.collector_id, 0) for one in batches
    )


class NamedEntries:
    """Copies of manifests, by key. A copy proves no manifest; it saves reading an equal one."""

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self.manifests: dict[ObjectKey, AcceptedManifest] = {}

    @property
    def extra_weight(self) -> int:
        """How many plain entries need as much memory as the parts of these entries."""
        return sum(entry_weight(one) - 1 for one in self.manifests.values())

    def divide(
        self, manifests: Iterable[AcceptedManifest], lanes: frozenset[int]
    ) -> tuple[dict[ObjectKey, int], list[AcceptedManifest]]:
        """Return the entries of these lanes, which are remembered, and the manifests of others."""
        mine: dict[ObjectKey, int] = {}
        others: list[AcceptedManifest] = []
        for manifest in manifests:
            lane = lane_of(manifest.agent_id, self._lanes)
            if lane in lanes:
                key = accepted_key(manifest.identity)
                mine[key] = lane
                self.manifests[key] = manifest
            else:
                others.append(manifest)
        return mine, others

    def lanes_of(self, manifests: Iterable[AcceptedManifest]) -> frozenset[int]:
        """Return the lanes of manifests."""
        return frozenset(lane_of(one.agent_id, self._lanes) for one in manifests)

    def find(self, keys: Iterable[ObjectKey]) -> list[AcceptedManifest]:
        """Return the manifests that are remembered under these keys."""
        return [self.manifests[key] for key in keys if key in self.manifests]

    def forget(self, keys: Iterable[ObjectKey]) -> None:
        """Drop entries that are done."""
        for key in keys:
            self.manifests.pop(key, None)


PENDING_MAX: Final = 16_384
"""Entries that were read and are not processed, over all journals; then reading pauses. One with
the parts of combined requests counts as several.
"""

OBJECTS_PENDING_MAX: Final = 16_384
"""Objects that were read and are not processed, over all journals; about 1 KiB of memory each."""

SWITCH_INTERVAL_S: Final = 60.0
"""Time between two reads of the authority's mode switches while a spool is registered."""

RETRY_S: Final = 1.0
"""Pause before entries that could not be processed are tried again, seconds."""

UNREGISTERED_INTERVALS: Final = 5
"""Pause between two passes while no gateway is registered, in intervals of listing."""


class JournalRoute:
    """Reads, processes and publishes, each time that `run_pass` is called."""

    def __init__(self, context: ReconcilerContext, pipeline: BatchPipeline) -> None:
        self._context = context
        self._pipeline = pipeline
        self._registrations = RegistrationReader(context.store, context.requests)
        self._reader = JournalReader(context.store)
        self._lapsed: set[str] = set()
        self._journals: dict[str, ProcessJournal] = {}
        self._ended: frozenset[str] = frozenset()
        self._listed_ns: UnixNs | None = None
        self._lanes_read = False
        self._listed_at_ns = 0
        self._published_at_ns: int | None = None
        self._spool_left_ns: UnixNs | None = None
        self._switch_read_at_ns: int | None = None
        self._entries = NamedEntries(context.authority.lanes)
        self.tried = asyncio.Event()
        """Set when the first pass has ended, with or without an error."""
        self.is_behind = False
        """Whether the last pass left objects of a journal unread, so that another one is due."""
        self.frontier: Frontier | None = None
        """The frontier of the last pass, without what other reconcilers have shown."""

    @property
    def journals(self) -> tuple[ProcessJournal, ...]:
        """The journal of each registered process."""
        return tuple(self._journals.values())

    @property
    def ended(self) -> frozenset[str]:
        """The processes whose journals no longer bound the frontier."""
        return self._ended

    @property
    def late_processes(self) -> frozenset[str]:
        """The open processes that have written nothing for `LATE_S`."""
        late = (one.process for one in self.journals if one.is_silent(LATE_S))
        return frozenset(late).difference(self._ended)

    @property
    def open_processes(self) -> int:
        """Number of processes whose journals bound the frontier."""
        return len(self._journals) - len(self._ended)

    async def run(self) -> None:
        """Make passes until cancelled; store errors are logged, and the pass is repeated."""
        health = self._context.health
        while True:
            try:
                await self.run_pass()
            except SluiceError as error:
                health.fail(Loop.JOURNALS, error)
                pause_s = RETRY_S
            else:
                health.succeed(Loop.JOURNALS)
                health.journal_passes += self._context.registry.is_journaled
                pause_s = self.pause_s
            self.tried.set()
            await self._context.runtime.clock.sleep(pause_s)

    @property
    def pause_s(self) -> float:
        """The pause after a pass that succeeded, seconds."""
        settings = self._context.settings
        if self.is_behind:
            return 0.0  # the pass stopped at a limit, so the next one has work
        if self.open_processes:
            return settings.read_interval_s
        if self._journals:
            return settings.listing_interval_s
        return UNREGISTERED_INTERVALS * settings.journal_interval_s

    async def run_pass(self) -> PipelineResult:
        """Read what is new, process it, and publish the frontier; after an error, call it again."""
        interval_ns = int(self._context.settings.listing_interval_s * NS_PER_S)
        now_ns = self._context.runtime.clock.monotonic_ns()
        if self._listed_ns is None or now_ns - self._listed_at_ns >= interval_ns:
            await self._list_processes()
            self._listed_at_ns = now_ns
        await self._read_objects()
        failed: SluiceError | None = None
        try:
            result = await self._process()
        except SluiceError as error:
            failed = error  # what was done before is published: other reconcilers wait for it
        if self._context.registry.is_journaled:
            self._cover_live()
        await self._publish()
        if failed is not None:
            raise failed
        return result

    def _cover_live(self) -> None:
        """Record in the live window through which time the journals are read.

        A journal that ended without a close bounds that time until a full pass has replaced it. If
        this process does not make that pass, for example because it started later, the window
        relies on the pass of another process, whose batches it reports as missing.
        """
        live, began_ns = self._context.live, self._pass_began_ns()
        live.watch()
        own_ns, progress = live.passed_ns, self._progress()
        if began_ns is not None and (own_ns is None or began_ns > own_ns):
            ended = ended_processes(progress, began_ns, self._spool_left_ns)
            if ended != ended_processes(progress, own_ns, self._spool_left_ns):
                live.rely_on_pass(began_ns)
        live.cover(self.decide(live.passed_ns))

    # --- reading ---------------------------------------------------------------------------------

    async def _list_processes(self) -> None:
        discovery = self._context.discovery
        date_ns = await discovery.read()
        self._context.clock.observe(date_ns)
        if not self._lanes_read:
            await self._read_lanes()
        self._context.registry.begin_listing()
        registered = await self._registrations.read()
        for process, (registration, written_ns) in registered.items():
            if process not in self._journals:
                published = discovery.record.journals.get(process, 0)
                journal = ProcessJournal.of(registration, written_ns, published)
                self._journals[process] = journal
        for process in [one for one in self._journals if one not in registered]:
            del self._journals[process]
        self._listed_ns = date_ns
        self._cover()
        pass_began_ns = self._pass_began_ns()
        for journal in self._journals.values():
            journal.heal(pass_began_ns)
        await self._read_spool_switch()
        self._ended = ended_processes(self._progress(), pass_began_ns, self._spool_left_ns)
        self._report_lapsed()
        self._set_lags()
        await self._context.registry.observe_registrations(
            [one.registration for one in self._journals.values()]
        )

    def _report_lapsed(self) -> None:
        """Log each lapsed process once."""
        lapsed = {process for process, one in self._journals.items() if one.is_replaced()}
        for process in lapsed - self._lapsed - self._ended:
            journal = self._journals[process]
            log.warning(
                "gateway_process_lapsed",
                gateway=journal.registration.collector_id,
                process=process,
                complete_through_unix_ns=journal.complete_through_ns,
            )
        self._lapsed = lapsed

    def _set_lags(self) -> None:
        metrics, clock = self._context.metrics, self._context.clock
        metrics.journal_entries_pending.set(entries_pending(self.journals))
        lags: defaultdict[str, float] = defaultdict(float)
        for process, journal in self._journals.items():
            if process not in self._ended:
                name = journal.registration.collector_id
                label = name if name in lags or len(lags) < GATEWAYS_LABELLED else OTHER_GATEWAYS
                lags[label] = max(lags[label], clock.age_s(journal.complete_through_ns))
        metrics.journal_lag.clear()
        for label, lag_s in lags.items():
            metrics.journal_lag.labels(label).set(lag_s)

    async def _read_lanes(self) -> None:
        """Read what the lanes were given; one that cannot be read stops no other.

        Its batches are left: nothing is appended to a lane before its state is read.
        """
        try:
            await self._context.workers.refresh()
        except StoreError as error:
            log.warning("lane_not_written", reason=str(error))
        else:
            self._lanes_read = True

    async def has_open_spool(self) -> bool:
        """Return True if a spool is registered: what it has not transferred is in no listing."""
        registered = await self._registrations.read()
        return any(
            one.acceptance == "local_spool" and process not in self._ended
            for process, (one, _) in registered.items()
        )

    async def _read_spool_switch(self) -> None:
        """Read when the authority left `local_spool`, now and then while a spool is registered."""
        spools = (one for one in self._progress() if one.acceptance == "local_spool")
        now_ns = self._context.runtime.clock.monotonic_ns()
        last_ns = self._switch_read_at_ns
        due = last_ns is None or now_ns - last_ns >= SWITCH_INTERVAL_S * NS_PER_S
        if due and any(spools):
            self._spool_left_ns = (await read_history(self._context.store)).spool_left_ns
            self._switch_read_at_ns = now_ns

    def _pass_began_ns(self) -> UnixNs | None:
        began_ns = self._context.discovery.record.pass_began_unix_ns
        return None if began_ns is None else UnixNs(began_ns)

    def _cover(self) -> None:
        """Drop pending entries that another reconciler published as processed."""
        published = self._context.discovery.record.journals
        record, layout = self._context.discovery.record, self._context.authority.layout
        elsewhere = {
            lane: record.lane_time(lane, layout) for lane in self._context.workers.of_members
        }
        pass_began_ns = self._pass_began_ns() or 0
        covered: list[ObjectKey] = []
        for process, journal in self._journals.items():
            for one in journal.cover(published.get(process, 0)):
                covered += one.left
            for one in journal.pending:
                covered += one.cover_lanes(elsewhere, pass_began_ns, journal.known_ns)
        found = self._entries.find(covered)
        self._context.live.observe_elsewhere(found)
        self._entries.forget(covered)
        for stage in Stage:
            self._context.pending.end(stage, covered)

    def _has_too_many_objects(self) -> bool:
        return sum(len(journal.pending) for journal in self.journals) >= OBJECTS_PENDING_MAX

    def _space(self) -> int:
        """Return how many plain entries may be read."""
        if self._has_too_many_objects():
            return 0
        return PENDING_MAX - entries_pending(self.journals) - self._entries.extra_weight

    async def _read_objects(self) -> None:
        self.is_behind = False
        space = self._space()
        if space <= 0:
            # Halted lanes must not stop the others: a full pass enqueues their batches later.
            for journal in self._journals.values():
                self._entries.forget(journal.abandon(elsewhere=self._has_too_many_objects()))
            space = self._space()
        if space <= 0:
            return
        space -= await self._read_again(space)
        unread = [
            journal
            for process, journal in self._journals.items()
            if process not in self._ended and journal.broken is None and not journal.is_read
        ]

        async def read(journal: ProcessJournal) -> list[JournalObject]:
            return await self._reader.read_next(journal, space)

        found = await self._context.requests.each(unread, read)
        self.is_behind |= any(is_cut_short(objects, space) for objects in found)
        for journal, objects in zip(unread, found, strict=True):
            for one in objects:
                self._context.clock.observe(one.date_ns)
                journal.read(self._pending(journal, one), one.written_ns)

    async def _read_again(self, space: int) -> int:
        """Read objects with entries of lanes that were handed over; return the entries' weight."""
        elsewhere, weight = self._context.workers.of_members, 0
        gained = [
            (journal, one, one.elsewhere - elsewhere)
            for journal in self.journals
            for one in journal.pending
            if not one.elsewhere <= elsewhere
        ]
        for done, (journal, one, lanes) in enumerate(gained):
            if done >= OBJECTS_MAX or weight >= space:
                self.is_behind = True
                break
            manifests = await self._reader.read_again(journal, one.number)
            if manifests is None:
                one.lose(lanes)
                continue
            mine, _ = self._entries.divide(manifests, lanes)
            weight += sum(entry_weight(self._entries.manifests[key]) for key in mine)
            one.regain(mine, lanes, self._context.runtime.clock.monotonic_ns())
        return weight

    def _pending(self, journal: ProcessJournal, one: JournalObject) -> UnprocessedObject:
        """Return the entries of an object that this process has to care for."""
        published = self._context.discovery.record.journals.get(journal.process, 0)
        is_new = one.number > published
        lanes = frozenset(range(self._context.authority.lanes)) - self._context.workers.of_members
        left, others = self._entries.divide(one.manifests, lanes if is_new else frozenset())
        self._context.live.observe_elsewhere(others)
        elsewhere = self._entries.lanes_of(others) if is_new else frozenset[int]()
        return UnprocessedObject(
            number=one.number,
            complete_through_ns=one.complete_through_ns,
            closed=one.journal.header.closed,
            left=left,
            due_ns=self._context.runtime.clock.monotonic_ns(),
            written_ns=one.written_ns,
            attempted=not left,
            elsewhere=elsewhere,
        )

    # --- processing ------------------------------------------------------------------------------

    async def _process(self) -> PipelineResult:
        """Process what is due, in chunks that many journals share."""
        now_ns = self._context.runtime.clock.monotonic_ns()
        due = [
            one
            for journal in self._journals.values()
            for one in journal.pending
            if one.due_ns <= now_ns and (one.left or not one.attempted)
        ]
        result = PipelineResult()
        try:
            if due:
                result = await self._process_objects(due)
        finally:
            before = sum(len(journal.pending) for journal in self._journals.values())
            for journal in self._journals.values():
                journal.settle()
            after = sum(len(journal.pending) for journal in self._journals.values())
            self._context.metrics.journal_objects.inc(before - after)
        return result

    async def _process_objects(self, due: Sequence[UnprocessedObject]) -> PipelineResult:
        shared = self._context.workers.shared
        if shared is None and any(one.attempted for one in due):
            # Their lanes were another reconciler's: it may have enqueued them since.
            await self._context.workers.refresh()
        elsewhere = self._context.workers.elsewhere
        keys = {
            key: None
            for one in due
            for key, lane in one.left.items()
            if lane not in elsewhere or (one.attempted and shared is None)
        }
        result, step = PipelineResult(), self._context.settings.list_batches_max
        ordered, finished = list(keys), set[ObjectKey]()
        try:
            for first in range(0, len(ordered), step):
                chunk = ordered[first : first + step]
                done = await self._pipeline.process_new(chunk, named=self._entries.manifests)
                result = result.plus(done)
                self._count_absent(done, chunk)
                finished.update(key for key in chunk if key not in done.left_keys)
        finally:  # also if a later chunk failed
            for one in due:
                one.finish(finished)
            self._context.live.observe_elsewhere(self._entries.find(finished))
            self._entries.forget(finished)
        self._schedule(due)
        return result

    def _count_absent(self, done: PipelineResult, chunk: Sequence[ObjectKey]) -> None:
        if done.absent:
            self._context.metrics.journal_entries_absent.inc(done.absent)
            log.error("journal_entries_absent", entries=done.absent, first_key=chunk[0])

    def _schedule(self, due: Sequence[UnprocessedObject]) -> None:
        """Set when what is left is tried again; a rival has `takeover_after_s` for its lanes."""
        patience_s = RETRY_S
        if self._context.workers.shared is None:
            patience_s = max(RETRY_S, self._context.settings.takeover_after_s)
        now_ns = self._context.runtime.clock.monotonic_ns()
        for one in due:
            pause_s = RETRY_S if one.attempted else patience_s
            one.attempted = True
            one.due_ns = now_ns + int(pause_s * NS_PER_S)

    # --- what full passes are for ----------------------------------------------------------------

    def wanted_pass_ns(self) -> UnixNs | None:
        """Return when a full pass must begin to replace a journal; None if none is needed now."""
        manifests = self._context.discovery.record.listed
        return wanted_pass_ns(self.journals, self._ended, self._context.clock.now_ns(), manifests)

    def named_through(self) -> dict[str, float]:
        """Return what the journals name up to now, as `named_through`."""
        return named_through(self.journals, self._ended)

    def _progress(self, lane: int | None = None) -> list[ProcessProgress]:
        date_ns = self._context.clock.now_ns()
        return [journal.progress(date_ns, lane) for journal in self._journals.values()]

    def decide(self, began_ns: UnixNs | None) -> dict[int, Frontier]:
        """Return the frontier of each lane, by a full pass that began then, and by journals."""
        if self._listed_ns is None:
            return {}
        listed_ns = self._listed_ns
        behind = lanes_left(self.journals)

        def decide(lane: int | None) -> Frontier:
            progress = self._progress(lane)
            return decide_frontier(listed_ns, progress, began_ns, self._spool_left_ns)

        clean = decide(None)
        lanes = range(self._context.authority.lanes)
        return {lane: decide(lane) if lane in behind else clean for lane in lanes}

    async def _publish(self) -> None:
        """Merge what this process has shown into the discovery record, at most once a second."""
        now_ns = self._context.runtime.clock.monotonic_ns()
        last_ns = self._published_at_ns
        if last_ns is not None and now_ns - last_ns < int(RETRY_S * NS_PER_S):
            return
        frontiers = self.decide(self._pass_began_ns())
        if not frontiers or not (self._journals or self._context.discovery.record.journals):
            return
        self.frontier = min(frontiers.values(), key=lambda one: one.complete_through_ns)
        numbers = {process: one.processed for process, one in self._journals.items()}
        claim = DiscoveryClaim(journals=numbers)
        if self._context.registry.is_journaled:
            claim = DiscoveryClaim(
                lanes={lane: one.complete_through_ns for lane, one in frontiers.items()},
                held_by=holder_text(self.frontier.held_by),
                journals=numbers,
            )
        if await self._context.discovery.claim(claim, step_s=IDLE_STEP_S):
            self._published_at_ns = now_ns
