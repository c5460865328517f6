"""The doctor: tests that a store keeps the promises on which sluice relies (ADR 11).

Races run through every endpoint given. The result is dated by the store's clock and written into
the store that was tested. Gateways read it and refuse to start without a good one.
The stored result has a digest.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Literal

import msgspec

from sluice_protocol.clock import Clock, IdSource
from sluice_protocol.errors import (
    InvalidRecord,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from sluice_protocol.keys import DOCTOR
from sluice_protocol.manifests import decode_record, encode_record
from sluice_protocol.outcomes import Applied, Deleted, Found, ObjectInfo
from sluice_protocol.units import ETag, ObjectKey
from sluice_store import conformance
from sluice_store.authority import read_store_time
from sluice_store.conformance import Nonconforming, expect, expect_type, race_create, race_replace
from sluice_store.port import ObjectStore, run_concurrently
from sluice_store.replication import check_not_replicated
from sluice_store.retry import Backoff, create_known, delete_current_version

RESULTS: Final = f"{DOCTOR}results/"
RESULTS_KEPT: Final = 16
"""Results that are kept. A reader lists them and then reads the newest, so more than one stays."""
_CONCURRENT_DELETES: Final = 8


class Need(StrEnum):
    """What requires a promise."""

    ACCEPTANCE = "acceptance"
    """Without it no gateway starts."""
    DELETION = "deletion"
    """Without it garbage collection only plans."""
    LOCK = "lock"
    """Without it Object Lock protects nothing. Everything else works."""
    COMFORT = "comfort"
    """Without it everything works, at the cost in the finding."""


class DoctorFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One promise and whether the store keeps it.

    `seen` is what the store did instead, and `cost` the consequence; both are empty if it kept it.
    If Object Lock keeps the objects of a probe, `seen` is that the promise was not tested.
    """

    probe: str
    promise: str
    need: Need
    kept: bool
    seen: str = ""
    cost: str = ""


class DoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of the doctor, with the findings in the order of the probes.

    `result_id` is a ULID. `endpoints` are the store URLs that took part in the races. Each kind of
    race ran `rounds` times with `racers` writers. Times are those of the store.
    """

    schema: Literal["sluice.doctor.v1"] = "sluice.doctor.v1"
    result_id: str
    endpoints: tuple[str, ...]
    started_at_unix_ns: int
    ended_at_unix_ns: int
    racers: int
    rounds: int
    findings: tuple[DoctorFinding, ...]

    def broken(self, need: Need) -> tuple[DoctorFinding, ...]:
        """Return the broken promises that this need requires."""
        return tuple(one for one in self.findings if one.need is need and not one.kept)

    @property
    def good(self) -> bool:
        """Whether gateways may accept through this store."""
        return not self.broken(Need.ACCEPTANCE)


class StoredDoctorResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result in its stored form: canonical JSON as text, so that its bytes are kept."""

    schema: Literal["sluice.doctor_stored.v1"] = "sluice.doctor_stored.v1"
    result: str
    sha256: str


def seal_result(result: DoctorResult) -> bytes:
    """Encode a result into its stored form."""
    text = encode_record(result)
    sealed = StoredDoctorResult(result=text.decode(), sha256=hashlib.sha256(text).hexdigest())
    return encode_record(sealed)


def open_result(key: str, body: bytes) -> DoctorResult:
    """Decode and check a stored result; `key` is for messages."""
    stored = decode_record(key, body, StoredDoctorResult)
    text = stored.result.encode()
    if hashlib.sha256(text).hexdigest() != stored.sha256:
        raise InvalidRecord(key, "the doctor's result does not match its digest")
    return decode_record(key, text, DoctorResult)


async def write_result(
    store: ObjectStore, result: DoctorResult, sealed: bytes, clock: Clock
) -> ObjectKey:
    """Write a sealed result under a key that sorts by time, and remove all but the newest ones.

    A failed removal is not an error: the next result removes what is left.
    """
    key = ObjectKey(f"{RESULTS}{result.ended_at_unix_ns:020d}-{result.result_id}.json")
    await create_known(store, key, sealed, Backoff.seeded_by(clock))  # the key has a new id
    with suppress(StoreError):
        await _remove_older(store)
    return key


async def _remove_older(store: ObjectStore) -> None:
    keys = [one.key async for page in store.list(RESULTS) for one in page.objects]
    remove = partial(delete_current_version, store)
    await run_concurrently(keys[:-RESULTS_KEPT], remove, concurrency=_CONCURRENT_DELETES)


async def read_doctor(store: ObjectStore) -> DoctorResult | None:
    """Return the newest result in the store, or None when the doctor never ran."""
    newest: ObjectKey | None = None
    async for page in store.list(RESULTS):
        newest = page.objects[-1].key if page.objects else newest
    read = await store.get(newest) if newest else None
    return open_result(read.info.key, read.body) if isinstance(read, Found) else None


async def require_doctor(store: ObjectStore) -> DoctorResult:
    """Return the newest result; raise if the doctor never ran or acceptance is not safe here."""
    result = await read_doctor(store)
    if result is None:
        raise StoreMisconfigured(
            "doctor", RESULTS, "no doctor's result: run `sluice doctor --store URL`"
        )
    broken = result.broken(Need.ACCEPTANCE)
    if broken:
        promises = "; ".join(f"{one.promise} (else {one.cost})" for one in broken)
        raise StoreMisconfigured(
            "doctor",
            RESULTS,
            (f"the store breaks promises that acceptance needs, use another store: {promises}"),
        )
    return result


RACERS: Final = 32
ROUNDS: Final = 3
WRITES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorProbe:
    """One promise, the test of it, and the consequence of breaking it."""

    name: str
    promise: str
    need: Need
    cost: str
    run: Callable[[Sequence[ObjectStore], str], Awaitable[None]]


def _first(check: conformance.Check) -> Callable[[Sequence[ObjectStore], str], Awaitable[None]]:
    async def run(stores: Sequence[ObjectStore], place: str) -> None:
        for i, store in enumerate(stores):
            await check(store, f"{place}{i}/")

    return run


async def _race_creates(stores: Sequence[ObjectStore], place: str) -> None:
    for i in range(ROUNDS):
        await race_create(stores, ObjectKey(f"{place}create/{i}"), RACERS)


async def _race_replaces(stores: Sequence[ObjectStore], place: str) -> None:
    for i in range(ROUNDS):
        key = ObjectKey(f"{place}replace/{i}")
        made = expect_type("a create applies", await stores[0].create(key, b"start"), Applied)
        await race_replace(stores, key, ETag(made.etag), RACERS)


async def _read_after_write(stores: Sequence[ObjectStore], place: str) -> None:
    """Check that each endpoint reads and lists what another endpoint has just written."""
    for i in range(max(WRITES, len(stores))):
        key = ObjectKey(f"{place}seen/{i}")
        writer = stores[i % len(stores)]
        expect_type("a create applies", await writer.create(key, b"written"), Applied)
        for reader in stores:
            read = expect_type(
                "a write is immediately readable at every endpoint", await reader.get(key), Found
            )
            expect("with its bytes", holds=read.body == b"written", seen=read.body)
            keys = [one.key for one in await conformance.collect_keys(reader, f"{place}seen/")]
            expect("a write is immediately listed at every endpoint", holds=key in keys, seen=keys)


async def _marker_then_create(stores: Sequence[ObjectStore], place: str) -> None:
    """Check that a key can be created after a plain delete, which leaves a delete marker."""
    store, key = stores[0], ObjectKey(f"{place}marker")
    delete = getattr(store, "delete_current", None)
    if delete is None:
        return  # this store has no markers
    expect_type("a create applies", await store.create(key, b"old"), Applied)
    expect_type("a plain delete applies", await delete(key), Deleted)
    expect_type("a create over a delete marker applies", await store.create(key, b"new"), Applied)


async def _is_locked(store: ObjectStore) -> bool:
    """Return True if the bucket locks each new version; a directory has no locks."""
    read = getattr(store, "locks_by_default", None)
    return read is not None and bool(await read())


async def _keeps_locked_versions(stores: Sequence[ObjectStore], place: str) -> None:
    """Try to delete a version that the default retention of the bucket has locked."""
    store, key = stores[0], ObjectKey(f"{place}locked")
    if not await _is_locked(store):
        return
    expect_type("a create applies", await store.create(key, b"locked"), Applied)
    made = expect_type("it is readable", await store.head(key), ObjectInfo)
    if made.incarnation is None:
        raise Nonconforming("a bucket with Object Lock has versions", "no version id")
    try:
        await store.delete(key, made.incarnation)
    except StoreUnavailable:
        raise
    except StoreError:
        return
    left = await store.head_incarnation(key, made.incarnation)
    expect("a locked version is kept", holds=isinstance(left, ObjectInfo), seen="it was deleted")


async def _not_replicated(stores: Sequence[ObjectStore], place: str) -> None:
    del place  # the objects of the deployment are checked, not those of the probe
    for store in stores:
        await check_not_replicated(store)


PROBES: Final = (
    DoctorProbe(
        name="race-create",
        promise="exactly one of many concurrent creates of a key is applied",
        need=Need.ACCEPTANCE,
        cost="two different batches accepted under one identity",
        run=_race_creates,
    ),
    DoctorProbe(
        name="create-once",
        promise="a create of an existing key is refused and changes nothing",
        need=Need.ACCEPTANCE,
        cost="an accepted batch replaced by another batch with the same identity",
        run=_first(conformance.check_create_once),
    ),
    DoctorProbe(
        name="race-replace",
        promise="exactly one of many concurrent replaces of a state is applied",
        need=Need.ACCEPTANCE,
        cost="queue entries lost: accepted batches that no consumer reads",
        run=_race_replaces,
    ),
    DoctorProbe(
        name="stale-replace",
        promise="a replace of a stale state is refused and changes nothing",
        need=Need.ACCEPTANCE,
        cost="queue entries lost, and a fenced consumer that continues to write",
        run=_first(conformance.check_replace),
    ),
    DoctorProbe(
        name="read-after-write",
        promise="a write is readable and listed at every endpoint as soon as it was acknowledged",
        need=Need.ACCEPTANCE,
        cost="duplicates accepted as new, and blobs deleted although a manifest names them",
        run=_read_after_write,
    ),
    DoctorProbe(
        name="not-a-replica",
        promise="the bucket is not a copy of another one, and no other one is copied into it",
        need=Need.ACCEPTANCE,
        cost="two buckets decide one identity, and a copy replaces an accepted batch",
        run=_not_replicated,
    ),
    DoctorProbe(
        name="checksum",
        promise="a body that does not match its sha256 is refused",
        need=Need.ACCEPTANCE,
        cost="corrupted bytes accepted as a batch",
        run=_first(conformance.check_wrong_checksum),
    ),
    DoctorProbe(
        name="clock",
        promise="Last-Modified is near the Date of the response, and Date never moves back",
        need=Need.ACCEPTANCE,
        cost="invalid proofs of a blob's age: an accepted batch without a blob",
        run=_first(conformance.check_times),
    ),
    DoctorProbe(
        name="versioning",
        promise="versioning is Enabled and every write has an object version",
        need=Need.DELETION,
        cost="garbage collection only plans: nothing is deleted",
        run=_first(conformance.check_versioning),
    ),
    DoctorProbe(
        name="delete-incarnation",
        promise="a delete of an old object version, however late, keeps a newer one",
        need=Need.DELETION,
        cost="a late delete removes a blob that was uploaded again since",
        run=_first(conformance.check_delete_spares_newer),
    ),
    DoctorProbe(
        name="delete-then-create",
        promise="a key whose object version was deleted can be created again",
        need=Need.DELETION,
        cost="a batch whose orphan blob was deleted cannot be uploaded again",
        run=_first(conformance.check_delete_then_create),
    ),
    DoctorProbe(
        name="object-lock",
        promise="a version that Object Lock keeps cannot be deleted, if the bucket has a lock",
        need=Need.LOCK,
        cost=(
            "the store accepts the lock and ignores it: do not rely on it for holds, remove"
            " [object_lock] from the settings of the policies, or use another store"
        ),
        run=_keeps_locked_versions,
    ),
    DoctorProbe(
        name="head-checksum",
        promise="a HEAD reports the sha256 that was verified at upload",
        need=Need.COMFORT,
        cost="every existing blob is read and hashed before it is used",
        run=_first(conformance.check_head_reports_checksum),
    ),
    DoctorProbe(
        name="marker-create",
        promise="a create over a delete marker is applied",
        need=Need.COMFORT,
        cost=(
            "a blob that an operator deleted is uploaded again only by a second, unconditional try"
        ),
        run=_marker_then_create,
    ),
)
"""Every probe; those that acceptance needs are first."""


async def examine(
    stores: Sequence[ObjectStore], endpoints: Sequence[str], ids: IdSource
) -> DoctorResult:
    """Test every promise through every endpoint, and remove the objects written for it.

    `stores` has one handle for each endpoint, and `endpoints` their URLs without credentials.
    """
    result_id = ids.ulid()
    place = f"{DOCTOR}probes/{result_id}/"
    started = await read_store_time(stores[0])
    locked = await _is_locked(stores[0])
    try:
        findings = [
            await _find(probe, stores, f"{place}{probe.name}/", locked=locked) for probe in PROBES
        ]
    finally:
        await _clean(stores[0], place)
    return DoctorResult(
        result_id=result_id,
        endpoints=tuple(endpoints),
        started_at_unix_ns=started,
        ended_at_unix_ns=await read_store_time(stores[0]),
        racers=RACERS,
        rounds=ROUNDS,
        findings=tuple(findings),
    )


async def _find(
    probe: DoctorProbe, stores: Sequence[ObjectStore], place: str, *, locked: bool
) -> DoctorFinding:
    seen = ""
    try:
        await probe.run(stores, place)
    except Nonconforming as failure:
        seen = str(failure)
    except StoreUnavailable:
        raise
    except StoreError as error:
        if locked and error.operation == "delete":
            return DoctorFinding(
                probe=probe.name,
                promise=probe.promise,
                need=probe.need,
                kept=True,
                seen="not tested: Object Lock keeps the objects of the probe",
            )
        if isinstance(error, StoreDenied):
            raise
        seen = str(error)
    return DoctorFinding(
        probe=probe.name,
        promise=probe.promise,
        need=probe.need,
        kept=not seen,
        seen=seen,
        cost=probe.cost if seen else "",
    )


async def _clean(store: ObjectStore, place: str) -> None:
    """Remove the objects of the probes, as far as the store allows it; the rest is harmless."""
    try:
        for row in await conformance.collect_incarnations(store, place):
            await store.delete(row.key, row.incarnation)
    except StoreError:
        return
