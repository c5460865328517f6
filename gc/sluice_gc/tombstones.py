"""Tombstones: their signature, and what an audit and a deletion read of them.

A tombstone counts only if a trusted key signed it for this authority. An audit reads all of them
once, so that expired manifests are no names. A deletion reads those of one hour again, together
with the holds and with the log entry of each table that the tombstone names. Whatever cannot be
read or verified leaves the batch unexpired, which keeps its blob.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sluice_gc.evidence_files import DIGEST, digest_bytes
from sluice_gc.key_ranges import DigestShard
from sluice_gc.signing_keys import TrustedKeys, is_signed, sign_record
from sluice_protocol.blob_deletion import ExpiryLookup
from sluice_protocol.errors import InvalidRecord
from sluice_protocol.expiry import (
    Holds,
    SignedTombstone,
    TableVersion,
    Tombstone,
    decode_tombstone,
)
from sluice_protocol.keys import EXPIRED, LAKE, digest_of
from sluice_protocol.manifests import AcceptedManifest, ConflictManifest
from sluice_protocol.outcomes import Found
from sluice_protocol.units import ObjectKey
from sluice_store.port import ObjectStore
from sluice_store.stored_expiry import TombstoneReader, read_holds

_DOMAIN: Final = b"sluice.tombstone.v1\n"
TOMBSTONES: Final = pa.schema(
    [
        pa.field("sha256", DIGEST, nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("made_at_ns", pa.int64(), nullable=False),
    ]
)
"""The batches of verified tombstones, by shard of their sha256. Only the audit reads them."""


def sign_tombstone(tombstone: Tombstone, key: Ed25519PrivateKey) -> SignedTombstone:
    """Return a tombstone with its signature."""
    key_id, signature = sign_record(key, _DOMAIN, tombstone)
    return SignedTombstone(tombstone=tombstone, key_id=key_id, signature=signature)


def is_trusted(signed: SignedTombstone, trusted: TrustedKeys, authority_id: str) -> bool:
    """Return True if a trusted key signed a tombstone of this authority."""
    tombstone = signed.tombstone
    return tombstone.authority_id == authority_id and is_signed(signed, trusted, _DOMAIN, tombstone)


async def list_tombstones(store: ObjectStore) -> list[ObjectKey]:
    """Return the keys of all tombstones; there are a few for each hour of acceptance."""
    return [one.key async for page in store.list(EXPIRED) for one in page.objects]


async def read_tombstone(
    store: ObjectStore, key: ObjectKey, trusted: TrustedKeys, authority_id: str
) -> Tombstone | None:
    """Return a verified tombstone; None if it is missing, damaged or not trusted."""
    read = await store.get(key)
    if not isinstance(read, Found):
        return None
    try:
        signed = decode_tombstone(key, read.body)
    except InvalidRecord:
        return None
    return signed.tombstone if is_trusted(signed, trusted, authority_id) else None


def tombstones_tables(
    tombstones: Iterable[Tombstone], shards: Sequence[DigestShard]
) -> dict[str, pa.Table]:
    """Return the batches of each shard as rows of `TOMBSTONES`, by the name of the shard."""
    rows: dict[str, list[dict[str, bytes | str | int]]] = defaultdict(list)
    name_of = {first: one.name for one in shards for first in range(one.first, one.end)}
    for made in tombstones:
        for key, digest in made.named():
            sha256 = digest_bytes(digest)
            rows[name_of[sha256[0]]].append(
                {"sha256": sha256, "key": key, "made_at_ns": made.made_at_unix_ns}
            )
    return {name: pa.Table.from_pylist(mine, schema=TOMBSTONES) for name, mine in rows.items()}


class TrustedTombstones:
    """Finds the tombstones of batches; the signature of each is verified once."""

    def __init__(self, store: ObjectStore, trusted: TrustedKeys, authority_id: str) -> None:
        self._reader = TombstoneReader(store)
        self._trusted = trusted
        self._authority_id = authority_id
        self._verified: dict[str, bool] = {}

    async def find(self, manifest: AcceptedManifest | ConflictManifest) -> Tombstone | None:
        """Return the newest tombstone that names a manifest; None if it is not trusted."""
        signed = await self._reader.find(manifest)
        if signed is None:
            return None
        key = signed.tombstone.key
        if key not in self._verified:
            self._verified[key] = is_trusted(signed, self._trusted, self._authority_id)
        return signed.tombstone if self._verified[key] else None


class ExpiredBatches:
    """What a deletion knows about expired batches at one moment: make a new one for each batch.

    `holds` were just read. Tombstones are permanent, so those that were read before are used.
    """

    def __init__(self, store: ObjectStore, tombstones: TrustedTombstones, holds: Holds) -> None:
        self._store = store
        self._holds = holds
        self._tombstones = tombstones
        self._tables: dict[tuple[str, int], str | None] = {}

    async def look_up(self, manifest: AcceptedManifest | ConflictManifest) -> ExpiryLookup | None:
        """Return what is known about the expiry of a batch; None if it has not expired.

        Refused bytes of a conflict are in no table, so none has to stay.
        """
        found = await self._tombstones.find(manifest)
        if found is None:
            return None
        if isinstance(manifest, ConflictManifest):
            return ExpiryLookup(held=self._holds.covers(manifest), table_stays=True)
        tables = found.tables
        stays = [await self._stays(name, state) for name, state in sorted(tables.items())]
        named = {manifest.kind, "batches"} <= set(tables)
        return ExpiryLookup(held=self._holds.covers(manifest), table_stays=named and all(stays))

    async def _stays(self, name: str, state: TableVersion) -> bool:
        place = (name, state.version)
        if place not in self._tables:
            self._tables[place] = await read_commit(self._store, name, state.version)
        return self._tables[place] == state.commit_sha256


async def read_commit(store: ObjectStore, table: str, version: int) -> str | None:
    """Return the sha256 of the log entry that committed a version; None if it is gone."""
    read = await store.get(ObjectKey(f"{LAKE}{table}/_delta_log/{version:020d}.json"))
    return digest_of(read.body) if isinstance(read, Found) else None


async def read_expired_now(store: ObjectStore, tombstones: TrustedTombstones) -> ExpiredBatches:
    """Return what deletions may know about expired batches, with holds that were just read."""
    return ExpiredBatches(store, tombstones, await read_holds(store))
