"""Verification of many batches by a few calls of the store."""

from collections.abc import Sequence
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import manifest
from support.reconciler_seed import accept

from sluice_protocol.errors import StoreError
from sluice_protocol.journals import HoldReason, HoldRecord
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import HeadOutcome, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey
from sluice_reconciler import verify
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.verify import VerifiedBatch, verify_batches
from sluice_store.local import LocalStore, open_local_store
from sluice_store.port import ObjectStore

Named = dict[ObjectKey, AcceptedManifest]


class WithoutSomeChecksums:
    """A store that lost a checksum, or whose blob differs in one attribute from its manifest."""

    def __init__(self, store: LocalStore, changed: dict[ObjectKey, dict[str, Any]]) -> None:
        self._store = store
        self._changed = changed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def head(self, key: ObjectKey) -> HeadOutcome:
        return self._with(key, await self._store.head(key))

    async def head_many(self, keys: list[ObjectKey]) -> list[HeadOutcome]:
        return [await self.head(key) for key in keys]

    def _with(self, key: ObjectKey, info: HeadOutcome) -> HeadOutcome:
        changed = self._changed.get(key)
        return with_fields(info, **changed) if changed and isinstance(info, ObjectInfo) else info


async def world(store: LocalStore) -> tuple[Any, list[ObjectKey], Named]:
    """Return a store with valid batches and one batch of each defect, their keys, and entries."""
    good = [await accept(store, seq) for seq in range(0, 300, 10)]
    lost, short, other, unhashed, rewritten = good[1], good[3], good[5], good[7], good[9]
    named = {accepted_key(one.identity): one for one in good if one is not good[11]}
    # The journal names other fields than the manifest that owns the identity.
    named[accepted_key(rewritten.identity)] = replace(rewritten, collector_id="another")
    # The entry of a manifest that does not exist, and one under the key of another identity.
    unwritten, foreign = manifest(5000), manifest(6000)
    named[accepted_key(unwritten.identity)] = unwritten
    place = accepted_key(manifest(7000).identity)
    await store.create(place, encode_record(foreign))
    await store.create(blob_key(foreign.digest), b"frame")
    named[place] = foreign
    malformed = accepted_key(manifest(8000).identity)
    await store.create(malformed, b"not a manifest")
    blob = await store.head(blob_key(lost.digest))
    assert blob.incarnation is not None
    await store.delete(blob.key, blob.incarnation)
    changed: dict[ObjectKey, dict[str, Any]] = {
        blob_key(short.digest): {"size_bytes": short.frame_bytes + 1},
        blob_key(other.digest): {"sha256": Digest("0" * 64)},
        blob_key(unhashed.digest): {"sha256": None},
    }
    keys = [accepted_key(one.identity) for one in good]
    places = [*keys, accepted_key(unwritten.identity), place, malformed]
    return WithoutSomeChecksums(store, changed), places, named


async def check(store: Any, keys: list[ObjectKey], named: Named) -> list[object]:
    """Return, for each key, the fields of the valid manifest or the reason of its hold."""
    found = await verify_batches(store, keys, RequestLimit(2), named=named)
    return [
        one.manifest.collector_id
        if isinstance(one, VerifiedBatch)
        else one.reason
        if isinstance(one, HoldRecord)
        else one
        for one in found
    ]


def expected(keys: list[ObjectKey], named: Named, collector: str) -> list[object]:
    wanted: list[object] = [collector] * len(keys)
    wanted[1] = HoldReason.BLOB_MISSING
    wanted[3] = wanted[5] = HoldReason.BLOB_CORRUPT
    wanted[-3] = HoldReason.MANIFEST_MISSING if keys[-3] in named else None
    wanted[-2] = wanted[-1] = HoldReason.INVALID_MANIFEST
    return wanted


@pytest.mark.parametrize("with_names", [True, False])
async def test_each_batch_is_valid_or_held_for_its_defect(with_names: bool, tmp_path: Path) -> None:
    """Number 7 has no checksum: its blob is read. The entry of number 9 is not its manifest."""
    async with open_local_store(tmp_path) as plain:
        store, keys, named = await world(plain)
        names = named if with_names else {}
        collector = named[keys[0]].collector_id
        assert await check(store, keys, names) == expected(keys, names, collector)
        assert await verify_batches(store, [], RequestLimit(2)) == []


async def test_a_blob_that_is_not_its_checksum_is_found_by_a_full_read(tmp_path: Path) -> None:
    async with open_local_store(tmp_path) as store:
        one = await accept(store, 0)
        key = accepted_key(one.identity)
        path = tmp_path / blob_key(one.digest)
        path.write_bytes(b"x" * one.frame_bytes)
        [seen] = await verify_batches(store, [key], RequestLimit(1))
        assert isinstance(seen, HoldRecord)
        assert seen.reason is HoldReason.BLOB_CORRUPT


async def test_a_key_that_cannot_be_read_stops_no_other(tmp_path: Path) -> None:
    async with open_local_store(tmp_path) as store:
        good = accepted_key((await accept(store, 0)).identity)
        bad, valid = await verify_batches(store, [ObjectKey("../x"), good], RequestLimit(1))
        assert isinstance(bad, StoreError)
        assert isinstance(valid, VerifiedBatch)


async def _no_check(*_: Any) -> None:
    """Accept a batch whose blob was not read."""


async def _entry_is_proof(
    store: ObjectStore, keys: Sequence[ObjectKey], named: Named
) -> dict[ObjectKey, object]:
    """Take the entry of a journal for the manifest, if an object exists."""
    infos = await store.head_many(keys)
    return {
        key: VerifiedBatch(
            key=key, manifest=named[key], body=encode_record(named[key]), date_ns=info.date_ns
        )
        for key, info in zip(keys, infos, strict=True)
        if isinstance(info, ObjectInfo)
    }


@pytest.mark.parametrize(
    ("name", "bug"), [("_check_blobs", _no_check), ("_compare_named", _entry_is_proof)]
)
async def test_planted_bugs_in_the_verification_of_batches_are_found(
    name: str, bug: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_local_store(tmp_path) as plain:
        store, keys, named = await world(plain)
        monkeypatch.setattr(verify, name, bug)
        collector = named[keys[0]].collector_id
        assert await check(store, keys, named) != expected(keys, named, collector)
