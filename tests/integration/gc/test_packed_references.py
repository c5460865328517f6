"""Audits of a deployment whose reconciler packs reverse references."""

import asyncio
from pathlib import Path

from support.gc_world import GcWorld, open_world

from sluice_gc.audit_tasks import SAMPLE_MAX
from sluice_protocol.keys import (
    accepted_by_blob_key,
    accepted_key,
    raw_blob_by_time_key,
)
from sluice_protocol.manifests import encode_reference
from sluice_protocol.outcomes import Found
from sluice_protocol.units import Digest
from sluice_reconciler.indexes import TimeEntry, pack


async def accept_packed(world: GcWorld, numbers: range) -> list[Digest]:
    """Accept batches, and pack their raw-blob entries as the reconciler does."""
    digests, entries = [], []
    for number in numbers:
        at_ns = world.clock.now_ns()
        digests.append(await world.accept(number, indexed=False))
        entries.append(
            TimeEntry(
                at_ns=at_ns,
                key=raw_blob_by_time_key(digests[-1], at_ns),
                body=encode_reference(accepted_key(world.identity(number))),
            )
        )
        world.clock.pass_s(0.1)
    for key, body, _ in pack(entries):
        assert key.endswith(".ndjson")
        await world.store.create(key, body)
    return digests


async def single(world: GcWorld, number: int, digest: Digest) -> bool:
    place = accepted_by_blob_key(digest, world.identity(number))
    return isinstance(await world.store.get(place), Found)


def test_packed_references_are_not_written_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            packed = range(0, 30 * SAMPLE_MAX, 10)
            digests = await accept_packed(world, packed)
            certificate = await world.audit()
            assert certificate.counts.references_repaired == 0
            assert certificate.counts.names == len(digests)
            for number, digest in zip(packed, digests, strict=True):
                assert not await single(world, number, digest)

    asyncio.run(scenario())


def test_references_that_are_nowhere_are_written_again(tmp_path: Path) -> None:
    """The packed objects of the hour contain other batches only, which have single references."""

    async def scenario() -> None:
        async with open_world(tmp_path / "store") as world:
            packed = await accept_packed(world, range(0, 30, 10))
            for number, digest in zip(range(0, 30, 10), packed, strict=True):
                body = encode_reference(accepted_key(world.identity(number)))
                place = accepted_by_blob_key(digest, world.identity(number))
                await world.store.create(place, body)
            lost = await world.accept(100, indexed=False)
            certificate = await world.audit()
            assert certificate.counts.references_repaired == 1
            assert await single(world, 100, lost)

    asyncio.run(scenario())
