"""A run of an erasure: remove its records wherever this run can, and report what is left.

Each run does the same: write the deletes, remove the rows, search every blob, record the expiry of
batches with matching records, delete their blobs by garbage collection, delete what is older than
the waits, search again. What has been done already is found done, so a run may be killed at any
request, and the next run ends in the same state. A run creates one report, at its end.

A blob is searched whether or not a manifest names it: blobs of refused uploads, of gateways that
stopped before the manifest, and copies in the trash contain the same records. Blobs never change.
So a run lists and decodes all of them once, and at its end looks whether those with matches still
exist. It has 20,000 manifests, 100,000 blobs with matches and 64 MiB of hashes in memory at most,
and the other hashes in temporary files, 32 bytes a batch.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from sluice_gc.auditor import Auditor
from sluice_gc.certificate import read_newest
from sluice_gc.cycle import plan_if_covered, read_due_plan
from sluice_gc.errors import GcRefused
from sluice_gc.expiry_run import ExpireReport, ExpiryCandidate, ExpiryRun, RefusedCandidate
from sluice_gc.plan_runner import PlanRunner
from sluice_gc.planner import Planner
from sluice_gc.settings import (
    AuditSettings,
    EraseSettings,
    ExpireSettings,
    ExpirySettings,
    PlanSettings,
    RunSettings,
)
from sluice_gc.signing_keys import AuditorKeys, TrustedKeys, is_signed, sign_record
from sluice_gc.task_engine import LocalTaskEngine
from sluice_gc.tombstones import TrustedTombstones
from sluice_gc.trash import purge_trash
from sluice_gc.version_expiry import expire_versions
from sluice_protocol.authority import Authority
from sluice_protocol.blob_deletion import Clause
from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.erasure import (
    ErasedCopy,
    ErasureDecision,
    ErasureReport,
    SignedErasure,
    SignedErasureReport,
    erasure_key,
    erasure_report_key,
)
from sluice_protocol.errors import BadUsage, InvalidRecord, InvariantViolated, SluiceError
from sluice_protocol.frame import HEAD_BYTES_MAX, decode_head
from sluice_protocol.keys import (
    ACCEPTED,
    GC_TRASH,
    QUARANTINE_CONFLICTS,
    RAW_BLOBS,
    blob_key,
    digest_of,
    parse_blob_key,
    parse_quarantine_key,
    parse_trash_key,
    quarantine_key,
    trash_key,
)
from sluice_protocol.manifests import (
    AcceptedManifest,
    ConflictManifest,
    decode_accepted,
    decode_conflict,
    encode_record,
)
from sluice_protocol.outcomes import Found, NotFound
from sluice_protocol.record_deletes import DeleteRecord
from sluice_protocol.units import NS_PER_S, Digest, ObjectKey, UnixNs
from sluice_spark.compaction.file_selection import retention_hours
from sluice_spark.erasure import ROLLUPS_NAME, ErasureLake, TableSearch
from sluice_store.authority import read_authority, read_store_time
from sluice_store.port import (
    ListedObject,
    ObjectStore,
    Versioning,
    read_bodies,
    run_concurrently,
)
from sluice_store.retry import Backoff, OtherBytes, create_once
from sluice_store.stored_deletes import write_delete
from sluice_store.stored_erasures import StoredErasure, check_erasable, read_erasure

FOUND_MAX: Final = 100_000
"""Blobs with matching records that one run removes: about 2 KiB each. The next run removes more."""
HASHES_BYTES_MAX: Final = 64 << 20
"""Bytes of hashes in memory before they are written to temporary files."""
REFUSED_LISTED_MAX: Final = 1_000
"""Refused batches that a report names, about 200 bytes each; the tombstones name all."""
HEADS_TOGETHER: Final = 16
"""Heads of blobs without a manifest that are read concurrently, at most."""
SEARCHED_TOGETHER: Final = 20_000
"""Manifests whose blobs are searched in one job: about 1 KiB each on the driver."""
_HOUR_NS: Final = 3600 * NS_PER_S
_DECISION: Final = b"sluice.erasure.v1\n"
_REPORT: Final = b"sluice.erasure_report.v1\n"
_UNREACHED: Final = (
    (
        "live_window",
        "memory of reconcilers: newer records replace them; a restart clears it",
    ),
    (
        "spools",
        "spools of gateways and agents: let them be sent, then run the erasure again",
    ),
    ("backups", "copies that operators made: delete them, or erase again after a restore"),
    ("sources", "log files of hosts, and systems to which consumers forwarded the records"),
)
_NONE: Final = (
    (
        "indexes_and_queues",
        "journals, entries by time, references, work lists and queues have no record in them",
    ),
    ("dead_letters", "they name a batch and a reason; its blob is searched"),
    (
        "caches",
        (
            "Spark and queries have temporary files only while they run; a query service forgets"
            " the footers of files within 10 minutes"
        ),
    ),
)
_STAYS: Final = (
    ("manifests", "identity, times, sizes, principal and sha256"),
    ("decision", "the filter, also in its deletes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedBlob:
    """A blob with matching records.

    `place` is what names it: an accepted manifest, a quarantine manifest, nothing, or its copy in
    the trash. `appeared_at_ns` is that of the manifest; without one, that of the blob. `conflict`
    is the quarantine manifest of refused bytes, None if it cannot be read.
    """

    manifest: AcceptedManifest
    appeared_at_ns: UnixNs
    place: str
    matches: int
    conflict: ConflictManifest | None = None


@dataclass(slots=True, kw_only=True)
class CollectionFacts:
    """What expiry and garbage collection did with blobs that contain matching records.

    `kept` counts by clause the batches that are not proved, and `kept_refused` the refused ones
    that cannot end. `plan_at_ns` is from when the plan with
    the other blobs can be executed. `refused` is why garbage collection stopped.
    """

    tombstones: int = 0
    kept: dict[str, int] = field(default_factory=dict)
    kept_refused: dict[str, int] = field(default_factory=dict)
    audit_id: str = ""
    plan_id: str = ""
    plan_at_ns: int | None = None
    refused: str = ""


@dataclass(slots=True, kw_only=True)
class BlobSearch:
    """What a search of all blobs found.

    Attributes:
        found: The blobs with matching records, `FOUND_MAX` at most.
        more: The number of further ones, which a later run removes.
        batches: The accepted batches with matching records.
        refused: The refused batches of conflicts with matching records.
        searched: The blobs that were decoded.
        total: The records of all accepted batches.
        unreadable: Keys of blobs that exist and cannot be decoded, `FOUND_MAX` at most.
    """

    found: list[SearchedBlob] = field(default_factory=list)
    more: int = 0
    batches: int = 0
    records: int = 0
    batch_bytes: int = 0
    refused: int = 0
    searched: int = 0
    total: int = 0
    unreadable: list[ObjectKey] = field(default_factory=list)

    def of(self, place: str) -> list[SearchedBlob]:
        """Return the blobs of a place."""
        return [one for one in self.found if one.place == place]

    def add(self, one: SearchedBlob) -> None:
        """Add a blob with matching records."""
        if one.place == "accepted":
            self.batches += 1
            self.records += one.matches
            self.batch_bytes += one.manifest.frame_bytes
        self.refused += one.place == "quarantine"
        if len(self.found) < FOUND_MAX:
            self.found.append(one)
        else:
            self.more += 1

    def add_unreadable(self, key: ObjectKey) -> None:
        """Add a blob that cannot be decoded."""
        if len(self.unreadable) < FOUND_MAX:
            self.unreadable.append(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasurePlan:
    """What an erasure would remove; nothing was written."""

    decision: ErasureDecision
    blobs: BlobSearch
    tables: Mapping[str, TableSearch]


def sign_erasure(decision: ErasureDecision, keys: AuditorKeys) -> bytes:
    """Return the stored bytes of a decision."""
    key_id, signature = sign_record(keys.private, _DECISION, decision)
    return encode_record(SignedErasure(decision=decision, key_id=key_id, signature=signature))


def check_signatures(stored: StoredErasure, trusted: TrustedKeys) -> None:
    """Raise `InvalidRecord` unless trusted keys signed a decision and its newest report."""
    decision, report = stored.signed.decision, stored.report
    if report is not None and report.report.decision_sha256 != digest_of(stored.body):
        key = erasure_report_key(decision.erasure_id, report.report.number)
        raise InvalidRecord(key, "the report is about another decision")
    if not is_signed(stored.signed, trusted, _DECISION, decision):
        raise _untrusted(erasure_key(decision.erasure_id))
    if report is not None:
        check_report(report, trusted)


def check_report(signed: SignedErasureReport, trusted: TrustedKeys) -> None:
    """Raise `InvalidRecord` unless a trusted key signed a report, which contains its decision."""
    report = signed.report
    if not is_signed(signed, trusted, _REPORT, report):
        raise _untrusted(erasure_report_key(report.erasure_id, report.number))


def _untrusted(key: ObjectKey) -> InvalidRecord:
    return InvalidRecord(
        key, "it was altered, or its signer is not trusted: use the key of the runs"
    )


class _Hashes:
    """A set of sha256 that is larger than memory: parts by the first byte, in temporary files.

    Look-ups in the order of hashes, as keys of blobs are listed, read each part once.
    """

    def __init__(self) -> None:
        self._parts = [bytearray() for _ in range(256)]
        self._bytes = 0
        self._folder: TemporaryDirectory[str] | None = None
        self._loaded: tuple[int, npt.NDArray[np.bytes_]] | None = None

    def add(self, digest: Digest) -> None:
        sha256 = bytes.fromhex(digest)
        self._parts[sha256[0]] += sha256
        self._bytes += len(sha256)
        if self._bytes >= HASHES_BYTES_MAX:
            self._folder = self._folder or TemporaryDirectory(prefix="sluice-erasure-")
            for number, part in enumerate(self._parts):
                with (Path(self._folder.name) / f"{number}").open("ab") as file:
                    file.write(part)
                part.clear()
            self._bytes = 0

    def __contains__(self, digest: Digest) -> bool:
        sha256 = bytes.fromhex(digest)
        if self._loaded is None or self._loaded[0] != sha256[0]:
            self._loaded = sha256[0], self._load(sha256[0])
        known = self._loaded[1]
        at = int(np.searchsorted(known, np.bytes_(sha256)))
        return at < len(known) and bytes(known[at].ljust(32, b"\0")) == sha256

    def _load(self, number: int) -> npt.NDArray[np.bytes_]:
        stored = b""
        if self._folder is not None:
            stored = (Path(self._folder.name) / f"{number}").read_bytes()
        return np.sort(np.frombuffer(stored + self._parts[number], "S32"))

    def close(self) -> None:
        """Delete the temporary files."""
        if self._folder is not None:
            self._folder.cleanup()


class ErasureSearch:
    """Searches of one store. The calls of `lake` are made outside of any event loop."""

    def __init__(self, store: ObjectStore, lake: ErasureLake) -> None:
        self._store = store
        self._lake = lake

    async def plan(self, decision: ErasureDecision) -> ErasurePlan:
        """Search for the records of an erasure that is not decided, and write nothing."""
        await check_erasable(self._store, decision)
        return ErasurePlan(
            decision=decision,
            blobs=await self.blobs(decision),
            tables=await asyncio.to_thread(self._lake.search, decision.deletes),
        )

    async def blobs(self, decision: ErasureDecision) -> BlobSearch:
        """Decode every blob that may contain matching records, also those without a manifest."""
        search = BlobSearch()
        together: list[SearchedBlob] = []
        with closing(_Hashes()) as named:
            # Other blobs are listed later, so that one whose manifest was created meanwhile is
            # among them.
            for blobs in (self._accepted(named, search), self._unnamed(decision, named, search)):
                async for one in blobs:
                    if _may_match(one.manifest, decision.deletes):
                        together.append(one)
                    if len(together) == SEARCHED_TOGETHER:
                        await self._search_some(decision, together, search)
                        together = []
        await self._search_some(decision, together, search)
        return search

    async def left(self, search: BlobSearch) -> BlobSearch:
        """Return what is left of the blobs that a search found, or of their copies in the trash."""
        unreadable = [key for key in search.unreadable if await self._exists(key)]
        left = replace(search, found=[], unreadable=unreadable)
        for one in search.found:
            if one.place != "trash" and await self._exists(blob_key(one.manifest.digest)):
                left.found.append(one)
            if await self._exists(trash_key(one.manifest.digest)):
                left.found.append(replace(one, place="trash"))
        return left

    async def _exists(self, key: ObjectKey) -> bool:
        return not isinstance(await self._store.head(key), NotFound)

    async def _search_some(
        self, decision: ErasureDecision, blobs: Sequence[SearchedBlob], search: BlobSearch
    ) -> None:
        if not blobs:
            return
        manifests = [one.manifest for one in blobs]
        counts = await asyncio.to_thread(self._lake.count_matches, manifests, decision.deletes)
        search.searched += len(counts)
        for place, one in enumerate(blobs):
            matches = counts.get(place)
            if matches:
                found = replace(one, matches=matches)
                search.add(await self._read_refusal(found) if one.place == "quarantine" else found)
            elif matches is None:
                key = ObjectKey(one.manifest.raw_blob_key)
                if await self._exists(key):
                    search.add_unreadable(key)

    async def _read_refusal(self, one: SearchedBlob) -> SearchedBlob:
        """Return refused bytes with their quarantine manifest; the later of both counts."""
        key = quarantine_key(one.manifest.identity, one.manifest.digest)
        read = await self._store.get(key)
        if not isinstance(read, Found):
            return one
        try:
            conflict = decode_conflict(key, read.body)
        except InvalidRecord:
            return one
        times = (one.appeared_at_ns, read.info.last_modified_ns, conflict.observed_at_unix_ns)
        return replace(one, conflict=conflict, appeared_at_ns=UnixNs(max(times)))

    async def _accepted(self, named: _Hashes, search: BlobSearch) -> AsyncIterator[SearchedBlob]:
        """Yield the accepted batches, count their records, and add their hashes to `named`."""
        async for page in self._store.list(ACCEPTED):
            bodies = await read_bodies(self._store, [one.key for one in page.objects])
            for listed, body in zip(page.objects, bodies, strict=True):
                manifest = decode_accepted(listed.key, body or b"")
                named.add(manifest.digest)
                search.total += manifest.record_count
                yield SearchedBlob(
                    manifest=manifest,
                    appeared_at_ns=listed.last_modified_ns,
                    place="accepted",
                    matches=0,
                )

    async def _unnamed(
        self, decision: ErasureDecision, named: _Hashes, search: BlobSearch
    ) -> AsyncIterator[SearchedBlob]:
        """Yield the blobs that no accepted manifest names, and the copies in the trash."""
        with closing(_Hashes()) as refused:
            async for page in self._store.list(QUARANTINE_CONFLICTS):
                for one in page.objects:
                    refused.add(parse_quarantine_key(one.key)[1])
            for prefix in (RAW_BLOBS, GC_TRASH):
                async for page in self._store.list(prefix):
                    places = _places(page.objects, named, refused)
                    for blob in await self._search_heads(decision, places, search):
                        yield blob

    async def _search_heads(
        self, decision: ErasureDecision, places: Mapping[ListedObject, str], search: BlobSearch
    ) -> list[SearchedBlob]:
        """Return the blobs of a page that no accepted manifest names, or copies in the trash.

        A copy counts as accepted before the decision; the blob that it was made of is older.
        """
        manifests: dict[ListedObject, AcceptedManifest | None] = {}

        async def read(listed: ListedObject) -> None:
            at_ns, parse = listed.last_modified_ns, parse_blob_key
            if places[listed] == "trash":
                at_ns, parse = UnixNs(min(at_ns, decision.decided_at_unix_ns)), parse_trash_key
            manifests[listed] = await self._manifest_of(listed.key, parse(listed.key), at_ns)

        await run_concurrently(places, read, concurrency=HEADS_TOGETHER)
        found = []
        for listed, place in places.items():
            manifest = manifests[listed]
            if manifest is None:
                search.add_unreadable(listed.key)
                continue
            found.append(
                SearchedBlob(
                    manifest=manifest,
                    appeared_at_ns=listed.last_modified_ns,
                    place=place,
                    matches=0,
                )
            )
        return found

    async def _manifest_of(
        self, key: ObjectKey, digest: Digest, at_ns: UnixNs
    ) -> AcceptedManifest | None:
        """Return what a manifest of a blob would contain; None if it is no frame."""
        read = await self._store.get(key, first=0, last=HEAD_BYTES_MAX - 1)
        try:
            envelope = decode_head(read.body if isinstance(read, Found) else b"").envelope
        except SluiceError:
            return None
        who = envelope.identity
        return AcceptedManifest(
            agent_id=who.agent_id,
            boot_id=who.boot_id,
            seq_start=who.seq_start,
            seq_end=who.seq_end,
            frame_sha256=digest,
            frame_bytes=0,
            raw_blob_key=key,
            accepted_at_unix_ns=at_ns,
            collector_id="",
            wire_version=1,
            frame_version=1,
            attempt_id="",
            kind=envelope.kind,
            record_count=who.seq_end - who.seq_start + 1,
            min_ts_unix_ns=None,
            max_ts_unix_ns=None,
            principal="",
        )


def _places(
    listed: Iterable[ListedObject], named: _Hashes, refused: _Hashes
) -> dict[ListedObject, str]:
    """Return where blobs are that no accepted manifest names, and copies in the trash."""
    places = {}
    for one in listed:
        if one.key.startswith(GC_TRASH):
            places[one] = "trash"
        elif (digest := parse_blob_key(one.key)) not in named:
            places[one] = "quarantine" if digest in refused else "orphans"
    return places


class ErasureRun:
    """The runs of one store. The calls of `lake` are made outside of any event loop."""

    def __init__(
        self,
        store: ObjectStore,
        lake: ErasureLake,
        keys: AuditorKeys,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._lake = lake
        self._search = ErasureSearch(store, lake)
        self._keys = keys
        self._clock = clock
        self._ids = ids
        self._backoff = Backoff.seeded_by(clock)

    async def decide(self, decision: ErasureDecision) -> StoredErasure:
        """Record an erasure; it hides the records from now on.

        Raises:
            BadUsage: A hold covers batches that may contain such records, nothing was ingested, or
                the filter matches every record. Nothing was written.
        """
        planned = await self._search.plan(decision)
        matches = planned.blobs.records
        if matches and matches >= planned.blobs.total:
            raise BadUsage(
                f"the filter matches all {planned.blobs.total} records of the store: name a"
                " narrower one"
            )
        key = erasure_key(decision.erasure_id)
        body = sign_erasure(decision, self._keys)
        if isinstance(await create_once(self._store, key, body, self._backoff), OtherBytes):
            raise InvariantViolated(f"another erasure exists under a new id, key=`{key}`")
        await self._write_deletes(decision)
        return await read_erasure(self._store, decision.erasure_id)

    async def run(self, erasure_id: str, settings: EraseSettings) -> ErasureReport:
        """Remove what can be removed now, and create the report of this run.

        Raises:
            BadUsage: There is no such erasure, or a hold covers batches that may contain records.
            InvalidRecord: The decision was altered.
        """
        stored = await read_erasure(self._store, erasure_id)
        check_signatures(stored, self._keys.trusted)
        decision, before = stored.signed.decision, stored.last
        await check_erasable(self._store, decision)
        await self._write_deletes(decision)
        await asyncio.to_thread(self._lake.remove_records, decision.deletes)
        blobs = await self._search.blobs(decision)
        facts = await self._collect(decision, blobs, settings)
        names = [*(one.kind for one in decision.deletes), ROLLUPS_NAME]
        authority = await read_authority(self._store)
        kept_hours = retention_hours(authority.retry_horizon_s, ExpireSettings.vacuum_hours)
        await asyncio.to_thread(
            self._lake.remove_replaced, names, settings.readers_hours, kept_hours
        )
        tables = await asyncio.to_thread(self._lake.search, decision.deletes)
        left = await self._search.left(blobs)
        clean = _clean_versions(before, tables)
        readers_ns = settings.readers_hours * _HOUR_NS
        now_ns = await read_store_time(self._store)
        if not left.found and not left.more and _is_clean(tables):
            before_ns = now_ns - readers_ns if readers_ns else None
            await asyncio.to_thread(self._lake.remove_old_entries, clean, before_ns)
        entries = await asyncio.to_thread(self._lake.count_old_entries, clean)
        versions = await self._expire_versions()
        outcome = _Outcome(
            decision=decision,
            before=before,
            authority=authority,
            now_ns=await read_store_time(self._store),
            readers_ns=readers_ns,
            unfinished_ns=kept_hours * _HOUR_NS,
            blobs=left,
            facts=facts,
            tables=tables,
            entries=entries,
        )
        report = ErasureReport(
            erasure_id=erasure_id,
            number=1,
            authority_id=authority.authority_id,
            decision=decision,
            decision_sha256=digest_of(stored.body),
            made_at_unix_ns=outcome.now_ns,
            batches=blobs.batches,
            records=blobs.records,
            searched={
                "blobs": left.searched,
                "data_files": sum(one.files for one in tables.values()),
                "noncurrent_versions_removed": versions,
            },
            verified=not (left.found or left.more or left.unreadable) and _is_clean(tables),
            copies=outcome.copies(),
            refused=tuple(
                sorted(
                    quarantine_key(one.manifest.identity, one.manifest.digest)
                    for one in blobs.of("quarantine")
                )
            )[:REFUSED_LISTED_MAX],
            clean_versions=clean,
            tombstones=facts.tombstones,
            audit_id=facts.audit_id,
            plan_id=facts.plan_id,
        )
        if before is not None:
            report = _continued(report, before)
        await self._write_report(report)
        return report

    async def _write_deletes(self, decision: ErasureDecision) -> None:
        for record in decision.deletes:
            written = await write_delete(self._store, record, self._backoff, self._ids)
            if written.record != record:
                raise InvariantViolated(f"another delete has this id, id=`{record.delete_id}`")

    async def _write_report(self, report: ErasureReport) -> None:
        key_id, signature = sign_record(self._keys.private, _REPORT, report)
        signed = SignedErasureReport(report=report, key_id=key_id, signature=signature)
        key = erasure_report_key(report.erasure_id, report.number)
        body = encode_record(signed)
        if isinstance(await create_once(self._store, key, body, self._backoff), OtherBytes):
            raise BadUsage(
                "another run of this erasure ended meanwhile: see `sluice erase report"
                f" {report.erasure_id}`"
            )

    async def _collect(
        self, decision: ErasureDecision, blobs: BlobSearch, settings: EraseSettings
    ) -> CollectionFacts:
        """Record the expiry of batches with matching records, and delete the blobs that may go."""
        facts = CollectionFacts()
        if not blobs.found:
            return facts
        try:
            await self._expire(decision, blobs, settings, facts)
            if any(one.place != "trash" for one in blobs.found):
                await self._delete_blobs(settings, facts)
        except GcRefused as refused:
            facts.refused = str(refused)
        if blobs.of("trash"):
            await purge_trash(self._store, self._keys.trusted, self._ids.ulid(), clock=self._clock)
        return facts

    async def _expire(
        self,
        decision: ErasureDecision,
        blobs: BlobSearch,
        settings: EraseSettings,
        facts: CollectionFacts,
    ) -> None:
        """Create tombstones for the batches that are older than the retry horizon."""
        authority = await read_authority(self._store)
        now_ns = await read_store_time(self._store)
        unread = sum(one.conflict is None for one in blobs.of("quarantine"))
        if unread:
            facts.kept_refused["manifest"] = unread
        batches = await self._unexpired(authority, blobs.of("accepted"))
        refused = await self._unexpired(authority, blobs.of("quarantine"))
        old, old_refused = (
            [one for one in some if _horizon_ends_ns(authority, one) < now_ns]
            for some in (batches, refused)
        )
        if len(batches) > len(old):
            facts.kept["certificate"] = len(batches) - len(old)
        ends = [_horizon_ends_ns(authority, one) for one in (*old, *old_refused)]
        if not ends:
            return
        newest = await read_newest(self._store, self._keys.trusted)
        if newest is None or newest.certificate.started_at_unix_ns <= max(ends):
            await self._audit(settings, facts)
        wanted = ExpireSettings(key_file=settings.key_file, trusted_keys=settings.trusted_keys)
        if old:
            report = await self._expiry().erase(
                decision.erasure_id,
                [
                    ExpiryCandidate(
                        manifest=one.manifest,
                        appeared_at_ns=one.appeared_at_ns,
                        matches=one.matches,
                    )
                    for one in old
                ],
                wanted,
            )
            _add_report(facts, facts.kept, report)
        if old_refused:
            report = await self._expiry().erase_refused(
                decision.erasure_id,
                [
                    RefusedCandidate(
                        conflict=one.conflict,
                        appeared_at_ns=one.appeared_at_ns,
                        matches=one.matches,
                    )
                    for one in old_refused
                    if one.conflict is not None
                ],
                wanted,
            )
            _add_report(facts, facts.kept_refused, report)

    async def _unexpired(
        self, authority: Authority, blobs: Sequence[SearchedBlob]
    ) -> list[SearchedBlob]:
        """Return the blobs whose manifest was read and that no trusted tombstone names."""
        tombstones = TrustedTombstones(self._store, self._keys.trusted, authority.authority_id)
        found = []
        for one in blobs:
            manifest = one.conflict if one.place == "quarantine" else one.manifest
            if manifest is not None and await tombstones.find(manifest) is None:
                found.append(one)
        return found

    def _expiry(self) -> ExpiryRun:
        return ExpiryRun(self._store, self._lake.compare, self._keys, self._clock, self._ids)

    async def _audit(self, settings: EraseSettings, facts: CollectionFacts) -> None:
        engine = LocalTaskEngine(self._store)
        auditor = Auditor(self._store, engine, self._keys, self._clock, self._ids)
        certificate = await auditor.audit(AuditSettings(key_file=settings.key_file))
        facts.audit_id = certificate.audit_id

    async def _delete_blobs(self, settings: EraseSettings, facts: CollectionFacts) -> None:
        """Execute the plan whose grace period is over, and make the next one."""
        await self._audit(settings, facts)
        engine = LocalTaskEngine(self._store)
        runner = PlanRunner(self._store, engine, self._keys.trusted, self._clock)
        run = RunSettings(
            key_file=settings.key_file,
            grace_s=settings.grace_s,
            require_approval=settings.require_approval,
        )
        due = await read_due_plan(self._store, self._keys.trusted, run)
        if due is not None:
            facts.plan_id = due.plan_id
            await runner.run(due.plan_id, run)
        planner = Planner(self._store, engine, self._keys, self._clock, self._ids)
        made = await plan_if_covered(
            planner,
            PlanSettings(
                key_file=settings.key_file,
                trusted_keys=settings.trusted_keys,
                max_delete_ratio=settings.max_delete_ratio,
            ),
        )
        if made is None or not made.candidates:
            return
        facts.plan_id = made.plan_id
        facts.plan_at_ns = made.made_at_unix_ns + int(settings.grace_s * NS_PER_S)
        if settings.grace_s == 0 and not settings.require_approval:
            await runner.run(made.plan_id, run)

    async def _expire_versions(self) -> int:
        """Delete noncurrent versions of derived data, such as those of deleted files."""
        if await self._store.read_versioning() is not Versioning.ENABLED:
            return 0
        removed, after = 0, ""
        while True:
            settings = ExpirySettings(retention_s=0)
            report = await expire_versions(self._store, settings, start_after=after)
            removed += sum(report.deleted.values())
            if report.resume_after is None:
                return removed
            after = report.resume_after


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What a run has left, from which it reports the state of each place."""

    decision: ErasureDecision
    before: ErasureReport | None
    authority: Authority
    now_ns: UnixNs
    readers_ns: int
    unfinished_ns: int
    blobs: BlobSearch
    facts: CollectionFacts
    tables: Mapping[str, TableSearch]
    entries: int

    def copies(self) -> tuple[ErasedCopy, ...]:
        """Return the state of every place that may have contained the records."""
        replaced = sum(len(one.replaced) for one in self.tables.values())
        unreadable = self.blobs.unreadable
        return (
            *(self._table(one.kind) for one in self.decision.deletes),
            self._table(ROLLUPS_NAME),
            self._copy("replaced_files", replaced, wait_ns=self.readers_ns),
            self._unfinished(),
            self._copy("table_logs", self.entries, wait_ns=self.readers_ns),
            self._copy("index_chunks", 0),
            self._batches(),
            self._unnamed("orphans"),
            self._unnamed("trash"),
            self._refused(),
            self._copy("further_blobs", self.blobs.more, wait_ns=0),
            self._copy("unreadable_blobs", len(unreadable), detail=", ".join(unreadable[:3])),
            self._copy("noncurrent_versions", 0),
            *(_not_applicable(name, detail) for name, detail in _NONE),
            *(ErasedCopy(name=name, state="stays", detail=detail) for name, detail in _STAYS),
            *(
                ErasedCopy(name=name, state="elsewhere", detail=detail)
                for name, detail in _UNREACHED
            ),
        )

    def _copy(
        self, name: str, found: int, *, wait_ns: int | None = None, detail: str = ""
    ) -> ErasedCopy:
        """Return the state of a place; with `wait_ns` a later run can clean it."""
        known = () if self.before is None else self.before.copies
        old = next((one for one in known if one.name == name), None)
        if not found:
            done_ns = old.at_unix_ns if old is not None and old.state == "done" else None
            return ErasedCopy(name=name, state="done", at_unix_ns=done_ns or self.now_ns)
        if wait_ns is None:
            return ErasedCopy(name=name, state="open", found=found, detail=detail)
        at_ns = self.now_ns + wait_ns
        if old is not None and old.state == "by_date" and old.at_unix_ns is not None:
            # Counted from the run that found it first, unless that time is over.
            at_ns = min(at_ns, old.at_unix_ns) if old.at_unix_ns > self.now_ns else at_ns
        return ErasedCopy(name=name, state="by_date", found=found, at_unix_ns=at_ns, detail=detail)

    def _unfinished(self) -> ErasedCopy:
        """Return the state of files that no commit names, whose job may still commit them."""
        written = [at for one in self.tables.values() for at in one.unfinished.values()]
        wait_ns = max(0, max(written, default=0) + self.unfinished_ns - self.now_ns)
        return self._copy("unfinished_files", len(written), wait_ns=wait_ns)

    def _table(self, name: str) -> ErasedCopy:
        search = self.tables.get(name)
        if search is None:
            return _not_applicable(name, "the table does not exist, or has no such records")
        detail = "other writers replaced the files meanwhile: run it again"
        return self._copy(name, search.rows, detail=detail)

    def _batches(self) -> ErasedCopy:
        """Return the state of the blobs of accepted batches."""
        batches = self.blobs.of("accepted")
        kept = {name: n for name, n in self.facts.kept.items() if name != Clause.CERTIFICATE}
        if self.facts.refused:
            return self._copy("raw_blobs", len(batches), detail=self.facts.refused)
        if kept:
            text = ", ".join(f"{name} {count}" for name, count in sorted(kept.items()))
            return self._copy("raw_blobs", len(batches), detail=f"kept by {text}")
        young = self.facts.kept.get(Clause.CERTIFICATE, 0)
        return self._copy(
            "raw_blobs",
            len(batches),
            wait_ns=self._wait_ns(batches, self.facts.plan_at_ns),
            detail=f"{young} younger than the retry horizon" if young else "",
        )

    def _refused(self) -> ErasedCopy:
        """Return the state of the refused bytes of conflicts."""
        blobs, kept = self.blobs.of("quarantine"), self.facts.kept_refused
        if not kept or self.facts.refused:
            return self._unnamed("quarantine")
        text = ", ".join(f"{name} {count}" for name, count in sorted(kept.items()))
        keys = ", ".join(one.manifest.raw_blob_key for one in blobs[:3])
        return self._copy("quarantine", len(blobs), detail=f"kept by {text}: {keys}")

    def _unnamed(self, place: str) -> ErasedCopy:
        blobs = self.blobs.of(place)
        if self.facts.refused and place != "trash":
            return self._copy(place, len(blobs), detail=self.facts.refused)
        plan_at_ns = None if place == "trash" else self.facts.plan_at_ns
        return self._copy(place, len(blobs), wait_ns=self._wait_ns(blobs, plan_at_ns))

    def _wait_ns(self, blobs: Iterable[SearchedBlob], plan_at_ns: int | None) -> int:
        """Return the time until the retry horizon of blobs is over and their plan may run."""
        ends = [_horizon_ends_ns(self.authority, one) for one in blobs]
        return max(0, max(ends, default=0) - self.now_ns, (plan_at_ns or 0) - self.now_ns)


def _not_applicable(name: str, detail: str) -> ErasedCopy:
    return ErasedCopy(name=name, state="not_applicable", detail=detail)


def _may_match(manifest: AcceptedManifest, deletes: Iterable[DeleteRecord]) -> bool:
    """Return True if, by its manifest, a batch may contain matching records.

    The times in a manifest are those that its sender stated, so they do not count.
    """
    return any(
        one.kind == manifest.kind
        and one.agent_id in (None, manifest.agent_id)
        and manifest.accepted_at_unix_ns <= one.accepted_until_unix_ns
        for one in deletes
    )


def _horizon_ends_ns(authority: Authority, one: SearchedBlob) -> int:
    at_ns = max(one.appeared_at_ns, one.manifest.accepted_at_unix_ns)
    return at_ns + authority.retry_horizon_ns


def _add_report(facts: CollectionFacts, kept: dict[str, int], report: ExpireReport) -> None:
    facts.tombstones += report.tombstones
    for clause, count in report.kept.items():
        kept[clause] = kept.get(clause, 0) + count


def _is_clean(tables: Mapping[str, TableSearch]) -> bool:
    return not any(one.rows or one.replaced or one.unfinished for one in tables.values())


def _continued(report: ErasureReport, before: ErasureReport) -> ErasureReport:
    """Return a report with what earlier runs have found and done."""
    return msgspec.structs.replace(
        report,
        number=before.number + 1,
        batches=max(report.batches, before.batches),
        records=max(report.records, before.records),
        refused=tuple(sorted({*report.refused, *before.refused}))[:REFUSED_LISTED_MAX],
        tombstones=report.tombstones + before.tombstones,
        audit_id=report.audit_id or before.audit_id,
        plan_id=report.plan_id or before.plan_id,
    )


def _clean_versions(
    before: ErasureReport | None, tables: Mapping[str, TableSearch]
) -> dict[str, int]:
    """Return the first version of each table that was seen without a matching row."""
    known = {} if before is None else before.clean_versions
    return {
        name: min(known.get(name, one.version), one.version)
        for name, one in tables.items()
        if not one.rows
    }
