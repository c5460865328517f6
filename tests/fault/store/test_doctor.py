"""The doctor names the broken promise of each deliberately broken store, and none of good ones.

Stores that each break one promise, for tests of the doctor.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from support.memory_bucket import Fault, Scripted, open_memory_store

from sluice_protocol.errors import InvalidRecord, StoreMisconfigured, StoreUnavailable
from sluice_protocol.outcomes import (
    Applied,
    CreateOutcome,
    DeleteOutcome,
    Exists,
    GetOutcome,
    HeadOutcome,
    Mismatch,
    NotFound,
    ObjectInfo,
    OverwriteOutcome,
    ReplaceOutcome,
)
from sluice_protocol.system_clock import SystemClock, SystemIds
from sluice_protocol.units import Digest, ETag, ObjectKey, ObjectVersion, UnixNs
from sluice_store import open_local_store
from sluice_store.doctor import (
    PROBES,
    RESULTS,
    RESULTS_KEPT,
    DoctorResult,
    examine,
    open_result,
    read_doctor,
    require_doctor,
    seal_result,
    write_result,
)
from sluice_store.port import IncarnationPage, ListPage, ObjectStore, Versioning
from sluice_store.s3.store import S3Store


class Honest(ObjectStore):
    """A store that forwards every call; the broken stores below change one verb each."""

    def __init__(self) -> None:
        self.inner: S3Store
        self.inner, self.transport = open_memory_store()

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.create(key, body, sha256=sha256)

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        return await self.inner.replace(key, body, if_match=if_match)

    async def overwrite(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> OverwriteOutcome:
        return await self.inner.overwrite(key, body, sha256=sha256)

    async def get(self, key: ObjectKey, *, first: int = 0, last: int | None = None) -> GetOutcome:
        return await self.inner.get(key, first=first, last=last)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        return await self.inner.head(key)

    async def head_incarnation(self, key: ObjectKey, incarnation: ObjectVersion) -> HeadOutcome:
        return await self.inner.head_incarnation(key, incarnation)

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        return await self.inner.delete(key, incarnation)

    async def delete_current(self, key: ObjectKey) -> DeleteOutcome:
        return await self.inner.delete_current(key)

    def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        return self.inner.list(prefix, start_after=start_after, end_at=end_at)

    def list_incarnations(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[IncarnationPage]:
        return self.inner.list_incarnations(prefix, start_after=start_after, end_at=end_at)

    async def read_versioning(self) -> Versioning:
        return await self.inner.read_versioning()


class IgnoresIfNoneMatch(Honest):
    """A create overwrites."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.overwrite(key, body, sha256=sha256)


class IgnoresIfMatch(Honest):
    """A replace overwrites."""

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        return await self.inner.overwrite(key, body)


class CreateNotAtomic(Honest):
    """Reads and then writes, as versions of SeaweedFS, RustFS and versitygw did."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo):
            return Exists(date_ns=seen.date_ns)
        return await self.inner.overwrite(key, body, sha256=sha256)


class ReplaceNotAtomic(Honest):
    """Reads and then writes."""

    async def replace(self, key: ObjectKey, body: bytes, *, if_match: ETag) -> ReplaceOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, NotFound) or seen.etag != if_match:
            return Mismatch(date_ns=seen.date_ns)
        return await self.inner.overwrite(key, body)


class StaleList(Honest):
    """Lists what existed at its third last listing."""

    def __init__(self) -> None:
        super().__init__()
        self.known: list[ListPage] = []

    async def _stale(self, page: ListPage) -> ListPage:
        self.known.append(replace(page, last=True))
        return self.known[max(0, len(self.known) - 2)]

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        async for page in self.inner.list(prefix, start_after=start_after, end_at=end_at):
            yield await self._stale(page)


class IgnoresChecksum(Honest):
    """Stores a body without comparing its checksum."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        return await self.inner.create(key, body)


class TwoClocks(Honest):
    """Its Last-Modified and its Date come from two clocks."""

    async def head(self, key: ObjectKey) -> HeadOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, NotFound):
            return seen
        return replace(seen, last_modified_ns=UnixNs(seen.last_modified_ns - 60 * 10**9))


class SuspendedVersioning(Honest):
    """Keeps no versions: a delete of `null` removes any object."""

    def __init__(self) -> None:
        super().__init__()
        self.transport.bucket.versioning = Versioning.SUSPENDED


class DeletesCurrent(Honest):
    """A delete of an object version removes the current one."""

    async def delete(self, key: ObjectKey, incarnation: ObjectVersion) -> DeleteOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo) and seen.incarnation is not None:
            incarnation = seen.incarnation
        return await self.inner.delete(key, incarnation)


class NoChecksumInHead(Honest):
    """A HEAD reports no checksum."""

    async def head(self, key: ObjectKey) -> HeadOutcome:
        seen = await self.inner.head(key)
        return seen if isinstance(seen, NotFound) else replace(seen, sha256=None)


class MarkerBlocksCreate(Honest):
    """A create over a delete marker is refused, as versitygw 1.8.0 does."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        async for page in self.inner.list_incarnations(key):
            if any(row.marker for row in page.incarnations):
                return Exists(date_ns=page.date_ns)
        return await self.inner.create(key, body, sha256=sha256)


class DelayedReads(Honest):
    """A read shows a write only some time after it was acknowledged."""

    async def create(
        self, key: ObjectKey, body: bytes, *, sha256: Digest | None = None
    ) -> CreateOutcome:
        seen = await self.inner.head(key)
        if isinstance(seen, ObjectInfo):
            return Exists(date_ns=seen.date_ns)
        self.late = asyncio.get_running_loop().call_later(
            0.05, lambda: self.transport.bucket.put(key, body, {})
        )
        return Applied(etag=ETag('"late"'), incarnation=ObjectVersion("late"), date_ns=seen.date_ns)


BROKEN: dict[str, tuple[Callable[[], Honest], set[str]]] = {
    "ignores If-None-Match": (IgnoresIfNoneMatch, {"race-create", "create-once"}),
    "ignores If-Match": (IgnoresIfMatch, {"race-replace", "stale-replace"}),
    "create not atomic": (CreateNotAtomic, {"race-create"}),
    "replace not atomic": (ReplaceNotAtomic, {"race-replace"}),
    "stale list": (StaleList, {"read-after-write"}),
    "ignores checksums": (IgnoresChecksum, {"checksum"}),
    "clock astray": (TwoClocks, {"clock"}),
    "versioning suspended": (SuspendedVersioning, {"versioning", "delete-incarnation"}),
    "deletes the current one": (DeletesCurrent, {"delete-incarnation", "delete-then-create"}),
    "no checksum in HEAD": (NoChecksumInHead, {"head-checksum"}),
    "marker blocks create": (MarkerBlocksCreate, {"marker-create"}),
    "slow to show": (DelayedReads, {"read-after-write"}),
}
"""Each broken store and the probes that must fail, possibly with others that follow."""


def _examine(store: ObjectStore) -> DoctorResult:
    return asyncio.run(examine([store], ["memory:"], SystemIds()))


@pytest.mark.parametrize("name", BROKEN)
def test_doctor_names_the_broken_promise(name: str) -> None:
    """Each broken store fails its probe, with what was seen and the consequence."""
    make, wanted = BROKEN[name]
    broken = {one.probe: one for one in _examine(make()).findings if not one.kept}
    for probe in wanted:
        assert probe in broken
        assert broken[probe].seen
        assert broken[probe].cost


@pytest.mark.parametrize("make", [make for make, _ in BROKEN.values()])
async def test_broken_promise_of_acceptance_stops_a_gateway_from_starting(
    make: Callable[[], Honest],
) -> None:
    """A result with a broken promise that acceptance needs is refused, with promise and
    consequence.
    """
    result = await examine([make()], ["memory:"], SystemIds())
    good, _ = open_memory_store()
    await write_result(good, result, seal_result(result), SystemClock())
    if result.good:
        assert (await require_doctor(good)).result_id == result.result_id
    else:
        with pytest.raises(StoreMisconfigured, match="else"):
            await require_doctor(good)


def test_doctor_finds_nothing_in_the_honest_fake() -> None:
    """The model of S3 keeps every promise, so the broken stores fail for their changes only."""
    result = _examine(Honest())
    assert [one for one in result.findings if not one.kept] == []
    assert [one.probe for one in result.findings] == [probe.name for probe in PROBES]


@pytest.mark.parametrize("ignored", [False, True])
def test_doctor_tries_to_delete_a_locked_version(ignored: bool) -> None:
    """A store that accepts Object Lock and ignores it is found; one that keeps it is good."""
    store, transport = open_memory_store()
    transport.bucket.retention_ns = 10**15
    transport.bucket.ignores_locks = ignored
    result = _examine(store)
    found = {one.probe: one for one in result.findings}
    assert found["object-lock"].kept is not ignored
    assert ("ignores it" in found["object-lock"].cost) is ignored
    assert ("not tested" in found["delete-incarnation"].seen) is not ignored
    assert [one.probe for one in result.findings if not one.kept] == ["object-lock"][: int(ignored)]


def test_doctor_finds_nothing_in_a_directory(tmp_path: Path) -> None:
    """The local store keeps every promise, through two handles on it."""

    async def run() -> DoctorResult:
        async with open_local_store(tmp_path) as one, open_local_store(tmp_path) as other:
            return await examine([one, other], ["file://", "file://"], SystemIds())

    result = asyncio.run(run())
    assert [one for one in result.findings if not one.kept] == []


async def test_doctor_removes_every_object_of_its_probes() -> None:
    """Every object version that the probes wrote is removed."""
    store, transport = open_memory_store()
    await examine([store], ["memory:"], SystemIds())
    assert list(transport.bucket.incarnations("", "")) == []


def test_doctor_has_no_result_for_an_unreachable_store() -> None:
    """An unreachable store is unavailable, not broken."""
    store, _ = open_memory_store(plan=Scripted(dict.fromkeys(range(1000), Fault.NOT_SENT)))
    with pytest.raises(StoreUnavailable):
        _examine(store)


def test_require_doctor_refuses_a_store_without_a_result() -> None:
    """A store without a doctor's result is refused, and the message names the command."""
    store, _ = open_memory_store()
    with pytest.raises(StoreMisconfigured, match="sluice doctor"):
        asyncio.run(require_doctor(store))


async def test_newest_doctor_result_is_used() -> None:
    """A later bad result replaces an earlier good one."""
    store, _ = open_memory_store()
    good = await examine([Honest()], ["memory:"], SystemIds())
    bad = await examine([BROKEN["ignores checksums"][0]()], ["memory:"], SystemIds())
    await write_result(store, good, seal_result(good), SystemClock())
    await write_result(store, bad, seal_result(bad), SystemClock())
    newest = await read_doctor(store)
    assert newest is not None
    assert newest.result_id == bad.result_id
    assert not newest.good


async def test_old_results_are_removed() -> None:
    """Every check writes a result; only the newest ones stay."""
    store, _ = open_memory_store()
    good = await examine([Honest()], ["memory:"], SystemIds())
    for number in range(RESULTS_KEPT + 3):
        one = msgspec.structs.replace(good, ended_at_unix_ns=good.ended_at_unix_ns + number)
        await write_result(store, one, seal_result(one), SystemClock())
    keys = [one.key async for page in store.list(RESULTS) for one in page.objects]
    assert len(keys) == RESULTS_KEPT
    newest = await read_doctor(store)
    assert newest is not None
    assert newest.ended_at_unix_ns == good.ended_at_unix_ns + RESULTS_KEPT + 2


def test_doctor_result_is_bound_to_its_bytes() -> None:
    """A truncated or edited result is refused."""
    result = _examine(Honest())
    sealed = seal_result(result)
    assert open_result("k", sealed) == result
    for bad in (sealed.replace(b'\\"kept\\":true', b'\\"kept\\":false', 1), sealed[:-10]):
        assert bad != sealed
        with pytest.raises(InvalidRecord):
            open_result("k", bad)
