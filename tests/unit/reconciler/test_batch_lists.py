"""The newest batches of the by-time index, also if a span has more objects than are listed."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.builders import log_columns, make_identity, manifest_of
from support.queue_store import SimStore

from sluice_protocol.frame import encode_frame
from sluice_protocol.keys import accepted_by_time_key, accepted_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler import batch_lists
from sluice_reconciler.batch_lists import read_newest_batches, read_span
from sluice_reconciler.indexes import TimeEntry, pack
from sluice_store.port import ListPage

MS = 1_000_000
NOW_NS = 1_790_000_000 * NS_PER_S


class ShortPages(SimStore):
    """A store whose listings have two objects on each page."""

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        async for page in super().list(prefix, start_after=start_after, end_at=end_at):
            for at in range(0, len(page.objects), 2):
                yield replace(page, objects=page.objects[at : at + 2])


async def index(store: SimStore, *ages_ms: int) -> None:
    """Write the by-time entry of one batch for each age."""
    for seq, age_ms in enumerate(ages_ms):
        at_ns = NOW_NS - age_ms * 1_000_000
        who = make_identity(seq, count=1)
        frame = encode_frame(identity=who, columns=log_columns(["x"], from_ns=at_ns))
        one = manifest_of(frame, at_ns=at_ns)
        key = accepted_by_time_key(accepted_key(one.identity), one.accepted_at_ns)
        await store.create(key, encode_record(one))


def ages(store: SimStore, limit: int, *, ahead_s: int = 0) -> list[list[int]]:
    """Return the ages of the batches of each page, in ms."""

    async def pages() -> list[list[int]]:
        found, before_ns, ahead = [], NOW_NS + ahead_s * NS_PER_S, ahead_s
        while True:
            page = await read_newest_batches(store, before_ns, limit, ahead_s=ahead)
            found.append([(NOW_NS - one.accepted_at_unix_ns) // 1_000_000 for one in page.batches])
            if page.next is None:
                return found
            before_ns, ahead = int(page.next), 0

    return asyncio.run(pages())


@pytest.mark.parametrize("ahead_s", [0, 60])
@pytest.mark.parametrize("listed_max", [6, 9, 20, 20_000])
def test_the_newest_come_first_whatever_is_listed(
    monkeypatch: pytest.MonkeyPatch, listed_max: int, ahead_s: int
) -> None:
    """A burst of 40 batches, and some hours before it a few others."""
    monkeypatch.setattr(batch_lists, "LISTED_MAX", listed_max)
    store = ShortPages()
    burst = list(range(5, 405, 10))
    old = [7_200_000, 7_300_000, 90_000_000]
    asyncio.run(index(store, *old[::-1], *burst[::-1]))
    found = ages(store, 5, ahead_s=ahead_s)
    assert [age for page in found for age in page] == burst + old
    assert found[0] == burst[:5]


@pytest.mark.parametrize("limit", [3, 10, 1000])
@pytest.mark.parametrize("opened_max", [1, 2, 7, 1000])
@pytest.mark.parametrize("listed_max", [4, 1000])
def test_a_span_names_the_part_of_it_that_was_read(
    monkeypatch: pytest.MonkeyPatch, listed_max: int, opened_max: int, limit: int
) -> None:
    """From that time on, no batch is missing, with packed objects that overlap and single ones."""
    monkeypatch.setattr(batch_lists, "LISTED_MAX", listed_max)
    monkeypatch.setattr(batch_lists, "READS_AT_ONCE", 1)
    rng = random.Random(opened_max * limit)
    ages_ms = sorted(rng.sample(range(1, 60_000), 60), reverse=True)
    packs: list[list[int]] = [[] for _ in range(6)]
    alone = ages_ms[::3]
    for place, age_ms in enumerate(one for one in ages_ms if one not in alone):
        packs[rng.randrange(6) if rng.random() < 0.3 else place * 6 // 40].append(age_ms)
    store = ShortPages()
    asyncio.run(fill(store, packs, alone))
    since_ns, before_ns = NOW_NS - 50_000 * MS, NOW_NS - 1_000 * MS
    found = asyncio.run(read_span(store, since_ns, before_ns, limit, opened_max))
    read = [(NOW_NS - one.accepted_at_unix_ns) // MS for one in found.batches]
    complete_ms = (NOW_NS - found.complete_since_unix_ns) // MS
    wanted = [age for age in ages_ms if 1_000 < age <= min(complete_ms, 50_000)]
    assert [age for age in read if age <= complete_ms] == wanted[::-1]
    assert found.is_cut == (found.complete_since_unix_ns > since_ns)
    if min(limit, opened_max, listed_max) == 1000:
        assert not found.is_cut
        assert len(read) == sum(1_000 < age <= 50_000 for age in ages_ms)


@pytest.mark.parametrize(
    ("limit", "opened_max", "packed"), [(3, 1000, False), (3, 1000, True), (1000, 3, False)]
)
def test_the_part_that_was_read_is_as_long_as_possible(
    store: SimStore, monkeypatch: pytest.MonkeyPatch, limit: int, opened_max: int, *, packed: bool
) -> None:
    """Three of five batches are read: the span is complete after the fourth."""
    monkeypatch.setattr(batch_lists, "READS_AT_ONCE", 1)
    ages_ms = [50, 40, 30, 20, 10]
    asyncio.run(fill(store, [ages_ms], []) if packed else index(store, *ages_ms))
    found = asyncio.run(read_span(store, NOW_NS - 60 * MS, NOW_NS, limit, opened_max))
    assert len(found.batches) == 3
    assert found.complete_since_unix_ns == NOW_NS - 40 * MS + 1


async def fill(store: SimStore, packs: list[list[int]], single: list[int]) -> None:
    """Write the by-time entries of batches of some ages in packed objects, and others alone."""
    for group in [*packs, *([age] for age in single)]:
        entries = []
        for age_ms in group:
            at_ns = NOW_NS - age_ms * MS
            who = make_identity(age_ms, count=1)
            frame = encode_frame(identity=who, columns=log_columns(["x"], from_ns=at_ns))
            one = manifest_of(frame, at_ns=at_ns)
            key = accepted_by_time_key(accepted_key(one.identity), one.accepted_at_ns)
            entries.append(TimeEntry(at_ns=one.accepted_at_ns, key=key, body=encode_record(one)))
        for key, body, _ in pack(entries):
            await store.create(key, body)
