"""Full passes over one store: what one does, and how it divides `accepted/` into spans."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.builders import make_identity
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued, index_entries, index_keys, refuse
from support.reconciler_world import TWO_LANES, make, runtime_of

from sluice_protocol.journals import HoldReason
from sluice_protocol.keys import ACCEPTED, accepted_key, blob_key
from sluice_protocol.manifests import decode_record
from sluice_protocol.units import ObjectKey
from sluice_reconciler.passes.full_pass import CUTS_MAX, MARKS_MAX, BootSample, cuts_of, spans_of
from sluice_reconciler.passes.progress import PASS, NextPass, PassRecord
from sluice_reconciler.service import Reconciler
from sluice_reconciler.verify import list_hold_records
from sluice_store.local import open_local_store
from sluice_store.port import ListPage


async def test_every_accepted_batch_is_indexed_and_enqueued_once_on_the_local_store(
    tmp_path: Path,
) -> None:
    """Two passes by two processes write three index entries of each batch and enqueue it once."""
    async with open_local_store(tmp_path) as store:
        batches = [
            await accept(store, seq, agent=agent)
            for agent in ("host-1", "host-2", "host-3")
            for seq in range(0, 100, 10)
        ]
        first = await Reconciler(store, TWO_LANES, runtime=runtime_of(SimStore(), 1)).once()
        assert (first.listed, first.outcome.enqueued, first.outcome.indexed) == (30, 30, 90)
        again = await Reconciler(store, TWO_LANES, runtime=runtime_of(SimStore(), 2)).once()
        assert (again.listed, again.outcome.enqueued, again.outcome.indexed) == (30, 0, 0)
        found = await enqueued(store)
        assert sorted(one.identity for one in found) == sorted(b.identity for b in batches)
        entries = await index_entries(store)
        assert entries.keys() == {key for one in batches for key in index_keys(one)}
        accepted = await store.get(accepted_key(batches[0].identity))
        assert entries[index_keys(batches[0])[0]] == accepted.body


async def test_batches_with_missing_or_corrupt_blobs_are_held_until_repaired() -> None:
    store = SimStore()
    good, gone, bad = [await accept(store, seq) for seq in (0, 10, 20)]
    frame = store.held.pop(blob_key(gone.digest))
    store.held[blob_key(bad.digest)].body = b"x" * bad.frame_bytes
    report = await make(store, 1).once()
    assert (report.outcome.enqueued, report.held_back) == (1, 2)
    marks = {mark.key: mark.reason async for mark in list_hold_records(store)}
    assert marks == {
        accepted_key(gone.identity): HoldReason.BLOB_MISSING,
        accepted_key(bad.identity): HoldReason.BLOB_CORRUPT,
    }
    store.held[blob_key(gone.digest)] = frame
    healed = await make(store, 2).once()
    assert (healed.outcome.enqueued, healed.held_back) == (1, 1)
    found = [one.identity for one in await enqueued(store)]
    assert found == [good.identity, gone.identity]


async def test_invalid_manifests_and_foreign_keys_are_held_and_stop_no_other_batch() -> None:
    store = SimStore()
    before, after = await accept(store, 0), await accept(store, 50)
    other = await accept(store, 20)
    body = store.held[accepted_key(other.identity)].body
    place = accepted_key(before.identity).rpartition("/")[0]
    wrong = {
        f"{place}/{10:020d}-{19:020d}.json": b"{not json",
        f"{place}/{30:020d}-{39:020d}.json": body,
        f"{place}/{40:020d}-{49:020d}.json": body.replace(b"accepted_batch", b"other"),
        f"{place}/notes.txt": b"hello",
        "accepted/v1/agent=zz/boot=00/x": b"",
    }
    for key, bad in wrong.items():
        await store.create(ObjectKey(key), bad)
    report = await make(store).once()
    assert (report.outcome.enqueued, report.held_back) == (3, 5)
    marks = {mark.key: mark.reason async for mark in list_hold_records(store)}
    assert set(marks) == set(wrong)
    assert (
        sorted(marks.values()) == [HoldReason.FOREIGN_KEY] * 2 + [HoldReason.INVALID_MANIFEST] * 3
    )
    assert len(await enqueued(store)) == 3
    assert after.identity in [one.identity for one in await enqueued(store)]


async def test_overlapping_ranges_are_enqueued_once_each(store: SimStore) -> None:
    for seq in range(0, 100, 10):
        await accept(store, seq)
    await make(store, 1).once()
    odd = [await accept(store, 30, count=5), await accept(store, 35, count=20)]
    report = await make(store, 2).once()
    assert report.outcome.enqueued == 2
    assert (await make(store, 3).once()).outcome.enqueued == 0
    found = [one.identity for one in await enqueued(store)]
    assert len(found) == len(set(found)) == 12
    assert {one.identity for one in odd} < set(found)


async def test_quarantine_manifests_get_their_reverse_reference(store: SimStore) -> None:
    await accept(store, 0)
    await refuse(store, 0)
    assert (await make(store, 1).once()).quarantined == 1
    assert (await make(store, 2).once()).quarantined == 0
    assert any(key.startswith("quarantine-by-blob/") for key in store.held)


async def test_each_queue_gets_every_batch(store: SimStore) -> None:
    await accept(store, 0)
    await make(store, 1).once()
    await accept(store, 10)
    report = await make(store, 2, queues="spark, http").once()
    assert report.outcome.enqueued == 3
    assert len(await enqueued(store, "spark")) == 2
    assert len(await enqueued(store, "http")) == 2


async def test_shards_list_every_key_once() -> None:
    agents = ["0", "9x", "A", "Zed", "_", "a", "host-1", "hostile", "m", "z", "~", "é", "\u65e5"]
    for shards in (1, 2, 7, 40, 500):
        store = SimStore()
        for agent in agents:
            await accept(store, 0, agent=agent)
            await accept(store, 10, agent=agent)
        for key in ("accepted/v1/agent=zz/x", "accepted/v1/0", "accepted/v1/~"):
            await store.create(ObjectKey(key), b"")
        report = await make(store, shards, shards=shards).once()
        assert (report.listed, report.outcome.enqueued) == (29, 26), shards
        assert (report.held_back, len(report.boots.boots)) == (3, 13)
        assert (await make(store, 2, shards=3).once()).outcome.enqueued == 0


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


async def test_the_second_pass_divides_what_the_first_one_could_not() -> None:
    store = Listed()
    store.counts_of = {}
    for number in range(30):
        for seq in (0, 10):
            await accept(store, seq, agent=f"agent-{number:06d}")
    subject = make(store, shards=3)
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
