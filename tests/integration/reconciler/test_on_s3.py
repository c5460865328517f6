"""Reconciler and queue over the S3 client, with moto's server."""

import asyncio

import pytest
from support.reconciler_seed import accept, enqueued, refuse
from support.store_versitygw import Server, make_bucket

from sluice_protocol.authority import Authority
from sluice_protocol.errors import Fenced
from sluice_queue.consumer import Consumer
from sluice_reconciler.service import Reconciler
from sluice_store import open_store


def test_reconcile_consume_and_rebuild_on_s3(
    moto: Server,
) -> None:
    """ETags, conditions and dates of S3 give the same guarantees as those of the embedded store."""

    async def run(url: str) -> None:
        await make_bucket(url)
        async with open_store(url) as store:
            for agent in ("a", "b"):
                for seq in (0, 10):
                    await accept(store, seq, agent=agent)
            await refuse(store, 0)
            authority = Authority(authority_id="A", lanes=2)
            # One after the other: moto may let two conditional writes win (test_rivals.py).
            first, second = Reconciler(store, authority), Reconciler(store, authority)
            await first.once()
            assert (await second.once()).outcome.enqueued == 0
            assert (await first.once()).outcome.enqueued == 0
            found = [one.identity for one in await enqueued(store)]
            assert len(found) == len(set(found)) == 4
            walk = first.rebuild()
            assert [one async for one in walk.differences()] == []
            old = await Consumer.open(store, queue="spark", lane=0)
            new = await Consumer.open(store, queue="spark", lane=0)
            with pytest.raises(Fenced):
                await old.next_descriptors(1)
            waiting = await new.next_descriptors(100)
            if waiting:
                await new.ack_through(waiting[-1].sequence)
            assert await new.next_descriptors(1) == ()

    asyncio.run(run(moto.url("reconcile", "some/prefix")))
