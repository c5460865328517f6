"""Deletion of expired noncurrent versions where the store has no lifecycle.

It deletes the versions that the rendered lifecycle rules of `sluice_policies` would delete, each by
its version id, except under `gateways/`. A run is bounded and may be killed at any time: what it
has deleted is not listed again. Two concurrent runs delete the same versions, which changes
nothing.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sluice_gc.settings import ExpirySettings
from sluice_protocol.blob_deletion import SWEPT, StoredVersion, VersionRuling, decide_version
from sluice_protocol.errors import StoreDenied, StoreMisconfigured
from sluice_protocol.outcomes import Deleted, HeadOutcome, NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_store.port import ListedIncarnation, ObjectStore, Versioning, run_concurrently

CONCURRENT_REQUESTS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryReport:
    """The result of one run.

    `deleted` counts by prefix, also what a dry run would delete. `kept` counts noncurrent versions
    by reason. The next run repeats deletions whose outcome is `unknown`, and continues after
    `resume_after`, which is None if this run listed all.
    """

    deleted: dict[str, int]
    deleted_bytes: int
    kept: dict[str, int]
    unknown: int
    listed: int
    resume_after: ObjectKey | None


@dataclass(slots=True)
class _Tally:
    deleted: Counter[str] = field(default_factory=Counter)
    deleted_bytes: int = 0
    kept: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    listed: int = 0


@dataclass(slots=True)
class _KeyState:
    """What is known about the key whose versions are being listed, newest first.

    `remains` is True if a version below the newest one was kept. `confirmed` is whether a read
    agreed with the listing; None before that read.
    """

    key: ObjectKey
    newest: ListedIncarnation
    newer_ns: UnixNs | None = None
    remains: bool = False
    confirmed: bool | None = None
    doomed: list[ListedIncarnation] = field(default_factory=list)


class _Expiry:
    """One run over all prefixes."""

    def __init__(self, store: ObjectStore, settings: ExpirySettings) -> None:
        self._store = store
        self._settings = settings
        self._retention_ns = settings.retention_s * NS_PER_S
        self._tally = _Tally()

    async def run(self, start_after: str) -> ExpiryReport:
        state: _KeyState | None = None
        done: ObjectKey | None = None
        now_ns = 0
        async for page, now_ns in _pages(self._store, start_after):
            touched = [] if state is None else [state]
            for one in page:
                if state is None or state.key != one.key:
                    state = _KeyState(key=one.key, newest=one)
                    touched.append(state)
                self._decide(state, one, now_ns)
            await self._purge(touched)
            await self._finish(touched[:-1], now_ns)
            done = touched[-2].key if len(touched) > 1 else done
            if self._over(finished=len(touched) > 1):
                return self._report(done or ObjectKey(start_after))
        await self._finish([] if state is None else [state], now_ns)
        return self._report(None)

    def _over(self, *, finished: bool) -> bool:
        """Return True at a bound; `listed_max` never ends a run between two versions of a key."""
        tally, settings = self._tally, self._settings
        listed = tally.listed >= settings.listed_max and finished
        return listed or tally.deleted.total() >= settings.deletes_max

    def _decide(self, state: _KeyState, one: ListedIncarnation, now_ns: int) -> None:
        self._tally.listed += 1
        version = _facts(one, newer_ns=state.newer_ns, hides=True)
        state.newer_ns = one.last_modified_ns
        ruling = decide_version(version, now_ns=now_ns, retention_ns=self._retention_ns)
        if ruling is VersionRuling.DELETE:
            state.doomed.append(one)
        elif not one.current:
            state.remains = True
            self._tally.kept[ruling.value] += 1

    async def _purge(self, states: Sequence[_KeyState]) -> None:
        touched = [state for state in states if state.doomed]
        unconfirmed = [state for state in touched if state.confirmed is None]
        await run_concurrently(unconfirmed, self._confirm, concurrency=CONCURRENT_REQUESTS)
        doomed: list[tuple[_KeyState, ListedIncarnation]] = []
        for state in touched:
            if state.confirmed:
                doomed += [(state, one) for one in state.doomed]
            else:
                state.remains = True
                self._tally.kept["changed"] += len(state.doomed)
            state.doomed = []
        await run_concurrently(doomed, self._delete, concurrency=CONCURRENT_REQUESTS)

    async def _confirm(self, state: _KeyState) -> None:
        state.confirmed = _agrees(state.newest, await self._store.head(state.key))

    async def _delete(self, doomed: tuple[_KeyState, ListedIncarnation]) -> None:
        state, one = doomed
        if not self._settings.dry_run:
            try:
                outcome = await self._store.delete(one.key, one.incarnation)
            except StoreDenied:
                state.remains = True
                self._tally.kept["denied"] += 1
                return
            if not isinstance(outcome, Deleted):
                state.remains = True
                self._tally.unknown += 1
                return
        prefix = next(prefix for prefix in SWEPT if one.key.startswith(prefix))
        self._tally.deleted[prefix] += 1
        self._tally.deleted_bytes += one.size_bytes

    async def _finish(self, states: Sequence[_KeyState], now_ns: int) -> None:
        """Delete the marker of each key that has no other version."""
        doomed: list[tuple[_KeyState, ListedIncarnation]] = []
        for state in states:
            marker = _facts(state.newest, newer_ns=None, hides=state.remains)
            ruling = decide_version(marker, now_ns=now_ns, retention_ns=self._retention_ns)
            if ruling is VersionRuling.DELETE:
                doomed.append((state, state.newest))
        await run_concurrently(doomed, self._delete, concurrency=CONCURRENT_REQUESTS)

    def _report(self, resume_after: ObjectKey | None) -> ExpiryReport:
        tally = self._tally
        return ExpiryReport(
            deleted=dict(sorted(tally.deleted.items())),
            deleted_bytes=tally.deleted_bytes,
            kept=dict(sorted(tally.kept.items())),
            unknown=tally.unknown,
            listed=tally.listed,
            resume_after=resume_after,
        )


def _facts(one: ListedIncarnation, *, newer_ns: UnixNs | None, hides: bool) -> StoredVersion:
    return StoredVersion(
        key=one.key,
        incarnation=one.incarnation,
        current=one.current,
        marker=one.marker,
        hides=hides,
        last_modified_ns=one.last_modified_ns,
        superseded_at_ns=newer_ns,
    )


def _agrees(newest: ListedIncarnation, head: HeadOutcome) -> bool:
    """Return True if the listed newest version is still the newest, or a later write is.

    If the newest version was deleted since, an older one is current now and must stay.
    """
    if isinstance(head, NotFound):
        return newest.marker
    later = head.last_modified_ns > newest.last_modified_ns
    return later or (not newest.marker and head.incarnation == newest.incarnation)


async def _pages(
    store: ObjectStore, start_after: str
) -> AsyncIterator[tuple[tuple[ListedIncarnation, ...], UnixNs]]:
    for prefix in SWEPT:
        if start_after > prefix and not start_after.startswith(prefix):
            continue
        after = start_after if start_after.startswith(prefix) else ""
        async for page in store.list_incarnations(prefix, start_after=after):
            yield page.incarnations, page.date_ns


async def expire_versions(
    store: ObjectStore, settings: ExpirySettings, *, start_after: str = ""
) -> ExpiryReport:
    """Delete noncurrent versions and delete markers whose retention is over.

    `start_after` is `resume_after` of the previous run; empty to start at the first prefix.

    Raises:
        StoreMisconfigured: Versioning is suspended, so that version ids do not identify bytes.
        StoreError: The store is unreachable or denies a request; what is deleted stays deleted.
    """
    if await store.read_versioning() is Versioning.SUSPENDED:
        raise StoreMisconfigured(
            "expire versions", "", "versioning is suspended: enable it, then run again"
        )
    return await _Expiry(store, settings).run(start_after)
