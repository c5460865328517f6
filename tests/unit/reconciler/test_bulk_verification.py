"""Verification of many batches by a few calls: the same result as of each batch alone."""

import asyncio
from collections.abc import Callable
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.builders import manifest
from support.reconciler_seed import accept

from sluice_protocol.discovery import HoldRecord
from sluice_protocol.keys import accepted_key, blob_key
from sluice_protocol.manifests import AcceptedManifest, encode_record
from sluice_protocol.outcomes import HeadOutcome, ObjectInfo
from sluice_protocol.units import Digest, ObjectKey
from sluice_reconciler.concurrency import RequestLimit
from sluice_reconciler.verify import BulkVerifier, VerifiedBatch, verify_batch
from sluice_store.local import LocalStore, open_local_store

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

    async def head_all(self, keys: list[ObjectKey]) -> list[HeadOutcome]:
        infos = await self._store.head_all(keys)
        return [self._with(key, info) for key, info in zip(keys, infos, strict=True)]

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
    assert isinstance(blob, ObjectInfo)
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


async def differences(store: Any, keys: list[ObjectKey], named: Named) -> list[ObjectKey]:
    """Return the keys that are valid in bulk and not alone, or with other bytes."""
    found = await BulkVerifier(store, RequestLimit(2)).verify(keys, named)
    wrong = []
    for key, one in found.items():
        alone = await verify_batch(store, key, named=named.get(key))
        same = isinstance(alone, VerifiedBatch) and (alone.manifest, alone.body) == (
            one.manifest,
            one.body,
        )
        if not same or one.key != key:
            wrong.append(key)
    return wrong


def test_only_valid_batches_are_verified_in_bulk(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_local_store(tmp_path) as plain:
            store, keys, named = await world(plain)
            found = await BulkVerifier(store, RequestLimit(2)).verify(keys, named)
            assert await differences(store, keys, named) == []
            alone = {key: await verify_batch(store, key, named=named.get(key)) for key in keys}
            valid = {key for key, one in alone.items() if isinstance(one, VerifiedBatch)}
            # Without a checksum of the store the blob must be read, which is left to the other way.
            assert valid - set(found) == {keys[7]}
            assert (
                sum(isinstance(one, HoldRecord) for one in alone.values()) == 6
            )  # one of them is named by a journal and has no manifest
            assert found[keys[9]].manifest != named[keys[9]]
            assert keys[11] in found
            assert await BulkVerifier(store, RequestLimit(2)).verify([], {}) == {}

    asyncio.run(run())


def _without_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept a batch whose blob was not read."""

    async def verify_manifests(self: BulkVerifier, keys: Any, named: Any) -> Any:
        found = await self._compare([key for key in keys if key in named], named)
        return found | await self._read([key for key in keys if key not in found])

    monkeypatch.setattr(BulkVerifier, "verify", verify_manifests)


def _entry_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the entry of a journal for the manifest."""

    async def compare(self: BulkVerifier, keys: Any, named: Any) -> Any:
        del self
        date_ns = 1
        return {
            key: VerifiedBatch(
                key=key, manifest=named[key], body=encode_record(named[key]), date_ns=date_ns
            )
            for key in keys
        }

    monkeypatch.setattr(BulkVerifier, "_compare", compare)


def _existence_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare no checksum of a manifest."""

    async def compare(self: BulkVerifier, keys: Any, named: Any) -> Any:
        infos = await self._store.head_all(keys)
        return {
            key: VerifiedBatch(
                key=key, manifest=named[key], body=encode_record(named[key]), date_ns=info.date_ns
            )
            for key, info in zip(keys, infos, strict=True)
            if isinstance(info, ObjectInfo)
        }

    monkeypatch.setattr(BulkVerifier, "_compare", compare)


@pytest.mark.parametrize("plant", [_without_blobs, _entry_is_proof, _existence_is_enough])
def test_planted_bugs_in_the_verification_of_many_batches_are_found(
    plant: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> list[ObjectKey]:
        async with open_local_store(tmp_path) as plain:
            store, keys, named = await world(plain)
            plant(monkeypatch)
            return await differences(store, keys, named)

    assert asyncio.run(run())


def test_a_manifest_under_the_key_of_another_identity_is_not_valid(tmp_path: Path) -> None:
    async def run() -> None:
        async with open_local_store(tmp_path) as plain:
            store, keys, named = await world(plain)
            for entries in (named, {}):
                found = await BulkVerifier(store, RequestLimit(2)).verify(keys, entries)
                assert keys[-2] not in found
                assert keys[0] in found

    asyncio.run(run())
