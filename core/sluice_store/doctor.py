"""The admission probe: what a store must promise before sluice accepts batches through it.

Races are run through every endpoint given. A result is dated by the store's own clock, bound to its
bytes by a digest, signed when the operator gives a key, and written into the store it speaks of;
gateways read it and refuse to start without a good one (ADR 0014).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from sluice_protocol.clock import IdSource
from sluice_protocol.errors import StoreDenied, StoreError, StoreUnavailable
from sluice_protocol.keys import AUTHORITY_SETTINGS, DOCTOR
from sluice_protocol.outcomes import Applied, Deleted, Found
from sluice_protocol.units import ETag, ObjectKey
from sluice_store import conformance
from sluice_store.checks import Nonconforming, expect, expect_type, race_create, race_replace
from sluice_store.doctor_result import DoctorFinding, DoctorResult, Need
from sluice_store.port import ObjectStore

RACERS: Final = 32
ROUNDS: Final = 3
WRITES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorProbe:
    """One promise, how it is tried, and what it would cost to break it."""

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
    """Each endpoint reads and lists at once what another one wrote."""
    for i in range(max(WRITES, len(stores))):
        key = ObjectKey(f"{place}seen/{i}")
        writer = stores[i % len(stores)]
        expect_type("a create applies", await writer.create(key, b"written"), Applied)
        for reader in stores:
            read = expect_type("a write is read everywhere at once", await reader.get(key), Found)
            expect("with its bytes", holds=read.body == b"written", seen=read.body)
            keys = [one.key for one in await conformance.collect_keys(reader, f"{place}seen/")]
            expect("a write is listed everywhere at once", holds=key in keys, seen=keys)


async def _marker_then_create(stores: Sequence[ObjectStore], place: str) -> None:
    """After a plain delete, which leaves a marker, the key is free for a create."""
    store, key = stores[0], ObjectKey(f"{place}marker")
    delete = getattr(store, "delete_current", None)
    if delete is None:
        return  # this store has no markers
    expect_type("a create applies", await store.create(key, b"old"), Applied)
    expect_type("a plain delete applies", await delete(key), Deleted)
    expect_type("a create over a delete marker applies", await store.create(key, b"new"), Applied)


PROBES: Final = (
    DoctorProbe(
        name="race-create",
        promise="exactly one of many creates of a key at once is applied",
        need=Need.ACCEPTANCE,
        cost="two different batches accepted under one identity",
        run=_race_creates,
    ),
    DoctorProbe(
        name="create-once",
        promise="a create on a taken key is refused and changes nothing",
        need=Need.ACCEPTANCE,
        cost="an accepted batch replaced by another one under its identity",
        run=_first(conformance.check_create_once),
    ),
    DoctorProbe(
        name="race-replace",
        promise="exactly one of many replaces of a state at once is applied",
        need=Need.ACCEPTANCE,
        cost="queue entries lost: accepted batches that no consumer ever sees",
        run=_race_replaces,
    ),
    DoctorProbe(
        name="stale-replace",
        promise="a replace of a stale state is refused and changes nothing",
        need=Need.ACCEPTANCE,
        cost="queue entries lost, and a consumer that was fenced off goes on writing",
        run=_first(conformance.check_replace),
    ),
    DoctorProbe(
        name="read-after-write",
        promise="a write is read and listed at every endpoint as soon as it was answered",
        need=Need.ACCEPTANCE,
        cost="duplicates answered as new, and blobs deleted that an audit did not see named",
        run=_read_after_write,
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
        promise="Last-Modified is near the Date of the answer, and Date does not fall",
        need=Need.ACCEPTANCE,
        cost="proofs of a blob's age that do not hold: an accepted batch without a blob",
        run=_first(conformance.check_times),
    ),
    DoctorProbe(
        name="versioning",
        promise="versioning is Enabled and every write has an incarnation",
        need=Need.DELETION,
        cost="garbage collection only plans: nothing is ever deleted",
        run=_first(conformance.check_versioning),
    ),
    DoctorProbe(
        name="delete-incarnation",
        promise="a delete of an old incarnation, however late, spares a newer one",
        need=Need.DELETION,
        cost="a late delete removes a blob that was uploaded again since",
        run=_first(conformance.check_delete_spares_newer),
    ),
    DoctorProbe(
        name="delete-then-create",
        promise="a key whose incarnation was deleted can be created again",
        need=Need.DELETION,
        cost="a batch whose orphan blob was deleted cannot be uploaded again",
        run=_first(conformance.check_delete_then_create),
    ),
    DoctorProbe(
        name="head-checksum",
        promise="a HEAD tells the sha256 that was verified at upload",
        need=Need.COMFORT,
        cost="every blob that exists already is read and hashed before it counts",
        run=_first(conformance.check_head_tells_checksum),
    ),
    DoctorProbe(
        name="marker-create",
        promise="a create over a delete marker is applied",
        need=Need.COMFORT,
        cost="a blob deleted by hand is uploaded again only by the second try, unconditionally",
        run=_marker_then_create,
    ),
)
"""Every probe, those that acceptance needs first."""


async def examine(
    stores: Sequence[ObjectStore], endpoints: Sequence[str], ids: IdSource
) -> DoctorResult:
    """Tries every promise, through every endpoint; what it writes it removes again.

    Args:
        stores: Handles on one and the same store, one per endpoint.
        endpoints: How each is named in the result; no credentials.
        ids: Where the id of the result comes from.

    Raises:
        StoreUnavailable: The store does not answer: nothing was judged.
        StoreDenied: The store refuses the caller: nothing was judged.
    """
    result_id = ids.ulid()
    place = f"{DOCTOR}probes/{result_id}/"
    started = (await stores[0].head(AUTHORITY_SETTINGS)).date_ns
    try:
        findings = [await _find(probe, stores, f"{place}{probe.name}/") for probe in PROBES]
    finally:
        await _clean(stores[0], place)
    return DoctorResult(
        result_id=result_id,
        endpoints=tuple(endpoints),
        started_at_unix_ns=started,
        ended_at_unix_ns=(await stores[0].head(AUTHORITY_SETTINGS)).date_ns,
        racers=RACERS,
        rounds=ROUNDS,
        findings=tuple(findings),
    )


async def _find(probe: DoctorProbe, stores: Sequence[ObjectStore], place: str) -> DoctorFinding:
    seen = ""
    try:
        await probe.run(stores, place)
    except Nonconforming as failure:
        seen = str(failure)
    except (StoreUnavailable, StoreDenied):
        raise
    except StoreError as error:
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
    """Removes what the probes wrote, as far as the store lets it: leftovers do no harm."""
    try:
        for row in await conformance.collect_incarnations(store, place):
            await store.delete(row.key, row.incarnation)
    except StoreError:
        return
