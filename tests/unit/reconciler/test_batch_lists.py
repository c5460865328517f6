"""The newest batches of the by-time index, also if a span has more objects than are listed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from support.builders import log_columns, make_identity, manifest_of
from support.queue_store import SimClock, SimStore

from sluice_protocol.frame import encode_frame
from sluice_protocol.keys import accepted_by_time_key, accepted_key
from sluice_protocol.manifests import encode_record
from sluice_protocol.units import NS_PER_S
from sluice_reconciler import batch_lists
from sluice_reconciler.batch_lists import read_newest_batches
from sluice_store.port import ListPage

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
    store = ShortPages(clock=SimClock())
    burst = list(range(5, 405, 10))
    old = [7_200_000, 7_300_000, 90_000_000]
    asyncio.run(index(store, *old[::-1], *burst[::-1]))
    found = ages(store, 5, ahead_s=ahead_s)
    assert [age for page in found for age in page] == burst + old
    assert found[0] == burst[:5]
