"""How a full pass divides `accepted/`: evenly, with each boot in one span, and each key in one."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from support.builders import make_identity
from support.queue_store import SimClock, SimIds, SimStore
from support.reconciler_seed import accept, enqueued

from sluice_protocol.authority import Authority
from sluice_protocol.keys import ACCEPTED, accepted_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import ObjectKey
from sluice_queue.lane import Runtime
from sluice_reconciler.passes.full_pass import CUTS_MAX, MARKS_MAX, BootSample, cuts_of, spans_of
from sluice_reconciler.passes.progress import PASS, NextPass, PassRecord
from sluice_reconciler.service import Reconciler
from sluice_reconciler.settings import ReconcilerSettings
from sluice_store.port import ListPage


def keys_of(agents: int, per_agent: int) -> list[str]:
    """Return the keys of agents whose names share a prefix; a few have many batches."""
    found = []
    for number in range(agents):
        count = per_agent * (20 if number % 97 == 0 else 1)
        found += [
            accepted_key(
                make_identity(10 * seq, agent=f"agent-{number:06d}", boot=f"b{number % 2}")
            )
            for seq in range(count)
        ]
    return sorted(found)


def sampled(keys: list[str]) -> BootSample:
    sample = BootSample()
    boot = ""
    for key in keys:
        if key.rpartition("/")[0] != boot:
            boot = key.rpartition("/")[0]
            sample.begin_boot(key)
        sample.count()
    return sample


@pytest.mark.parametrize("shards", [1, 2, 4, 7, 32])
@pytest.mark.parametrize("walks", [1, 3])
def test_agents_with_one_prefix_are_divided_evenly(shards: int, walks: int) -> None:
    keys = keys_of(2_000, 3)
    step = len(keys) // walks + 1
    samples = [sampled(keys[at : at + step]) for at in range(0, len(keys), step)]
    assert all(len(one.weighted()) <= MARKS_MAX for one in samples)
    cuts = cuts_of(samples)
    assert len(cuts) <= CUTS_MAX
    spans = [(one.after, one.up_to) for one in spans_of(shards, cuts)]
    assert len(spans) == shards
    inside = [[key for key in keys if key > low and (up is None or key <= up)] for low, up in spans]
    assert [key for one in inside for key in one] == keys
    assert max(map(len, inside)) <= 1.6 * len(keys) / shards
    boots = [{key.rpartition("/")[0] for key in one} for one in inside]
    assert sum(map(len, boots)) == len(set().union(*boots)), "a boot is in two spans"


@pytest.mark.parametrize("shards", [1, 3, 200])
def test_the_first_pass_cuts_by_the_alphabet(shards: int) -> None:
    spans = [(one.after, one.up_to) for one in spans_of(shards)]
    assert spans[0][0] == ""
    assert spans[-1][1] is None
    assert [up for _, up in spans[:-1]] == [low for low, _ in spans[1:]]


class Listed(SimStore):
    """A store that counts the accepted keys that each listing returned."""

    counts_of: dict[str, int]

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        async for page in super().list(prefix, start_after=start_after, end_at=end_at):
            if prefix == ACCEPTED:
                before = self.counts_of.get(start_after, 0)
                self.counts_of[start_after] = before + len(page.objects)
            yield page


def test_the_second_pass_divides_what_the_first_one_could_not() -> None:
    async def run() -> None:
        store = Listed(clock=SimClock())
        store.counts_of = {}
        for number in range(30):
            for seq in (0, 10):
                await accept(store, seq, agent=f"agent-{number:06d}")
        subject = Reconciler(
            store,
            Authority(authority_id="A", lanes=2),
            settings=ReconcilerSettings(shards=3),
            runtime=Runtime(clock=store.clock, ids=SimIds(1), rng=random.Random(1)),
        )
        await subject.progress.read()
        await subject.progress.save(PassRecord(began_unix_ns=0, spans=()))
        await subject._pass_loop.run_once(None, NextPass(start=True))
        assert sorted(store.counts_of.values()) == [0, 0, 60]
        record = decode_record(PASS, store.held[ObjectKey(PASS)].body, PassRecord)
        assert len(record.cuts) > 2
        store.counts_of = {}
        report = await subject._pass_loop.run_once(None, NextPass(start=True))
        assert sorted(store.counts_of.values()) == [20, 20, 20]
        assert (report.listed, report.outcome.enqueued) == (60, 0)
        assert len(await enqueued(store)) == 60

    asyncio.run(run())
