"""What a comparison of the indexes costs, and what it does about errors and concurrent writers."""

import errno
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.queue_store import SimStore
from support.reconciler_seed import accept, index_keys

from sluice_protocol.authority import Authority
from sluice_protocol.errors import BadUsage, StoreUnavailable
from sluice_protocol.keys import ACCEPTED, ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME, accepted_key
from sluice_protocol.manifests import AcceptedManifest, encode_record, encode_reference
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_reconciler.concurrency import READ_BYTES_MAX, RequestLimit
from sluice_reconciler.indexes import DerivedDifference, DifferenceKind
from sluice_reconciler.rebuild import EntryJoin, IndexComparison
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.local import open_local_store
from sluice_store.port import ListedObject, ListPage

BATCHES = 300


async def indexed(batches: int = BATCHES, **how: bool) -> tuple[SimStore, list[AcceptedManifest]]:
    """Return a store in which every batch is indexed, and the batches."""
    store = SimStore()
    made = [await accept(store, 10 * number) for number in range(batches)]
    settings = ReconcilerSettings(**how)
    await Reconciler(store, Authority(authority_id="A", lanes=1), settings=settings).once()
    store.counts.clear()
    return store, made


async def differences(
    store: Any, new_join: Callable[[], EntryJoin] = EntryJoin
) -> list[DerivedDifference]:
    return [one async for one in IndexComparison(store, RequestLimit(4), new_join).run()]


@pytest.mark.parametrize(
    ("how", "most"),
    [
        ({"pack_references": True}, 1),
        ({}, 2),
        ({"list_batches_max": 1}, 4),
    ],
    ids=["packed references", "packed entries", "single entries"],
)
async def test_every_object_of_an_intact_store_is_read_once(how: dict[str, int], most: int) -> None:
    """One GET for the manifest and one for each index entry that is an object."""
    store, _ = await indexed(**how)
    assert await differences(store) == []
    packs = 0 if "list_batches_max" in how else 2
    assert store.counts == {"get": most * BATCHES + packs, "list": 6}


async def test_a_few_differences_cost_a_few_more_requests() -> None:
    """Only what has no counterpart is read again."""
    store, made = await indexed(list_batches_max=1)
    del store.held[index_keys(made[7])[1]]
    store._put(index_keys(made[8])[0], b"{broken")
    found = {(one.key, one.wrong) for one in await differences(store)}
    assert found == {
        (index_keys(made[7])[1], DifferenceKind.MISSING),
        (index_keys(made[8])[0], DifferenceKind.DIFFERENT),
        (index_keys(made[8])[0], DifferenceKind.UNREADABLE),
    }
    assert store.counts["get"] < 4 * BATCHES + 20
    assert store.counts["list"] <= 10, "one of them of the tombstones of an hour"


def fail_once(store: SimStore, after: int) -> list[str]:
    """Let one request of a store fail, after this many others; return the list of requests."""
    made: list[str] = []

    def count(verb: str, key: str) -> None:
        made.append(verb)
        if len(made) == after + 1:
            raise StoreUnavailable(verb, key, "connection refused")

    store.before = count
    return made


async def test_a_failed_request_is_always_an_error_and_never_an_empty_result() -> None:
    """Whichever request fails."""
    store, made = await indexed(3, list_batches_max=1)
    plain = store.before
    for damaged in (False, True):
        if damaged:
            del store.held[index_keys(made[1])[0]]
            store._put(f"{index_keys(made[0])[1]}x", encode_reference(ObjectKey("x")))
        everything = await differences(store)
        assert len(everything) == 2 * damaged
        at, done = 0, False
        while not done:
            requests = fail_once(store, at)
            try:
                found = await differences(store)
            except StoreUnavailable:
                assert len(requests) > at
            else:
                assert len(requests) <= at
                assert found == everything
                done = True
            at += 1
        assert at > 18
        store.before = plain


class WritingStore:
    """A store in which another process writes when a prefix is first listed."""

    def __init__(self, inner: SimStore, prefix: str, write: Callable[[], Any]) -> None:
        self._inner = inner
        self._prefix: str | None = prefix
        self._write = write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[ListPage]:
        if prefix == self._prefix:
            self._prefix = None
            await self._write()
        async for page in self._inner.list(prefix, **bounds):
            yield page


@pytest.mark.parametrize("packed", [True, False])
async def test_a_batch_that_is_accepted_and_indexed_meanwhile_is_no_difference(
    packed: bool,
) -> None:
    store, _ = await indexed(3)
    again = Reconciler(
        store,
        Authority(authority_id="A", lanes=1),
        settings=ReconcilerSettings(list_batches_max=512 if packed else 1),
    )

    async def write() -> None:
        for number in range(3):
            await accept(store, 5000 + 10 * number)
        await again.once()

    assert await differences(WritingStore(store, ACCEPTED_BY_TIME, write)) == []


async def test_a_batch_that_is_indexed_late_is_no_difference() -> None:
    """Its entries are written between the reading of the indexes and the second comparison."""
    store, _ = await indexed(3)
    late = await accept(store, 5000)
    again = Reconciler(store, Authority(authority_id="A", lanes=1))
    seen = {one.key for one in await differences(store)}
    assert set(index_keys(late)) == seen

    lists = 0

    class Late(WritingStore):
        async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[ListPage]:
            nonlocal lists
            lists += prefix == ACCEPTED
            if prefix == ACCEPTED and lists == 2:
                await again.once()
            async for page in self._inner.list(prefix, **bounds):
                yield page

    assert await differences(Late(store, "", again.once)) == []
    assert lists == 2


async def test_a_reference_that_names_a_path_outside_the_store_is_reported(tmp_path: Path) -> None:
    """A directory refuses to read such a key; the comparison does not stop."""
    async with open_local_store(tmp_path) as store:
        key = ObjectKey(f"{RAW_BLOBS_BY_TIME}date=2026-01-01/hour=00/sha256={'0' * 64}.json")
        await store.create(key, encode_reference(ObjectKey("../../x")))
        [found] = await differences(store)
        assert (found.key, found.wrong) == (key, DifferenceKind.EXTRA)


async def test_a_full_disk_is_reported_with_the_setting_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(**_: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store, _ = await indexed(3)
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert await differences(store) == []
    with pytest.raises(BadUsage, match=r"No space left on device; set TMPDIR"):
        await differences(store, lambda: EntryJoin(memory_bytes_max=1))


async def test_the_temporary_file_is_removed_after_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = []
    real = tempfile.TemporaryFile

    def remembered(**how: Any) -> Any:
        opened.append(real(**how))
        return opened[-1]

    store, _ = await indexed(3)
    monkeypatch.setattr(tempfile, "TemporaryFile", remembered)
    fail_once(store, 8)
    with pytest.raises(StoreUnavailable):
        await differences(store, lambda: EntryJoin(memory_bytes_max=1))
    assert [one.closed for one in opened] == [True]


async def test_objects_that_are_read_together_fit_into_memory() -> None:
    """A page of large objects is read in parts, and a larger object alone."""
    big = READ_BYTES_MAX // 2
    sizes = [10, big, big, 20, 3 * big, 5]
    reads: list[int] = []

    class Pages:
        async def list(self, prefix: str, **_bounds: object) -> AsyncIterator[ListPage]:
            listed: Any = tuple(
                ListedObject(
                    key=ObjectKey(f"{prefix}{number}"),
                    size_bytes=size,
                    etag=None,
                    last_modified_ns=0,
                )
                for number, size in enumerate(sizes)
            )
            yield ListPage(objects=listed, date_ns=0, last=True)

        async def get_many(self, keys: Sequence[ObjectKey]) -> Sequence[Found]:
            reads.append(len(keys))
            info: Any = None
            return [Found(info=info, body=b"x") for _ in keys]

    pages: Any = Pages()
    got = [key async for some in RequestLimit(1).read(pages, "p/") for key, _ in some]
    assert got == [f"p/{number}" for number in range(len(sizes))]
    assert reads == [2, 2, 1, 1]


async def test_a_manifest_that_is_deleted_after_it_was_listed_defines_nothing() -> None:
    store, made = await indexed(2)
    gone = accepted_key(made[0].identity)

    class Deleting(WritingStore):
        async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[ListPage]:
            async for page in self._inner.list(prefix, **bounds):
                if prefix == ACCEPTED:
                    self._inner.held.pop(gone, None)
                yield page

    found = await differences(Deleting(store, "", lambda: None))
    assert {one.wrong for one in found} == {DifferenceKind.EXTRA}
    assert {one.key for one in found} == set(index_keys(made[0]))
    store._put(gone, encode_record(made[0]))
    assert await differences(store) == []
