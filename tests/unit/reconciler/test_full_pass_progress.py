"""When a full pass begins where journals make it rare, and how an interrupted one continues."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial

import pytest
from support import reconciler_world
from support.queue_store import SimStore
from support.reconciler_seed import accept, enqueued
from support.reconciler_world import runtime_of

from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.keys import ACCEPTED, ACCEPTED_BY_TIME, RAW_BLOBS_BY_TIME, WORK_LISTS
from sluice_protocol.manifests import decode_record
from sluice_protocol.outcomes import HeadOutcome, NotFound
from sluice_protocol.units import NS_PER_S, ObjectKey, UnixNs
from sluice_reconciler.completeness import StoreTally
from sluice_reconciler.passes.full_pass import HandOver, PassRun
from sluice_reconciler.passes.progress import (
    PASS,
    RETRY_S,
    NextPass,
    PassOptions,
    PassProgress,
    PassRecord,
    PassSpan,
    decide_next_pass,
    safety_interval_s,
)
from sluice_reconciler.pipeline import PipelineResult
from sluice_store.port import ListPage

DAY_S = 86_400.0


def at(seconds: float) -> UnixNs:
    return UnixNs(int(seconds * NS_PER_S))


def stored(began_s: float, *, left: bool = False, ended: bool = True) -> PassRecord:
    span = PassSpan(after="", up_to=None)
    return PassRecord(began_unix_ns=at(began_s), spans=(span,), left=left, ended=ended)


@pytest.mark.parametrize(
    ("now_s", "last", "wanted_s", "rival", "expected"),
    [
        (1000, None, None, False, NextPass(start=True)),
        (1000, stored(500), None, False, NextPass(start=False)),
        (500 + DAY_S, stored(500), None, False, NextPass(start=True)),
        (1000, stored(500, ended=False), None, False, NextPass(start=True, resume=True)),
        (1000, stored(500, ended=False), None, True, NextPass(start=False)),
        (1000, stored(500), 900, False, NextPass(start=True, urgent=True)),
        (1000, stored(500, ended=False), 900, False, NextPass(start=True, urgent=True)),
        (1000, stored(950), 900, False, NextPass(start=False)),
        (1000, stored(500), 1100, False, NextPass(start=False)),
        (500 + RETRY_S - 1, stored(500, left=True), None, False, NextPass(start=False)),
        (500 + RETRY_S, stored(500, left=True, ended=False), None, False, NextPass(start=True)),
    ],
)
def test_the_next_pass_is_decided_by_the_last_one_and_by_what_waits_for_it(
    now_s: float, last: PassRecord | None, wanted_s: float | None, rival: bool, expected: NextPass
) -> None:
    found = decide_next_pass(
        at(now_s),
        last,
        wanted_from_ns=None if wanted_s is None else at(wanted_s),
        interval_s=DAY_S,
        rival_runs=rival,
    )
    assert found == expected


@pytest.mark.parametrize(
    ("manifests", "most_s", "expected_s"),
    [
        (0, DAY_S, 60),
        (6_000, DAY_S, 60),
        (100_000, DAY_S, 1_000),
        (1_000_000, DAY_S, 10_000),
        (10_000_000, DAY_S, DAY_S),
        (0, 5, 5),
    ],
)
def test_passes_are_rarer_in_a_larger_store(
    manifests: int, most_s: float, expected_s: float
) -> None:
    assert safety_interval_s(manifests, most_s) == expected_s


class Interrupted(SimStore):
    """A store that becomes unreachable after a number of verified batches."""

    left = 10**9
    listed_after: list[str]

    async def head(self, key: ObjectKey) -> HeadOutcome:
        self.left -= 1
        if self.left < 0:
            raise StoreUnavailable("head", key, "planned")
        return await super().head(key)

    async def list(
        self, prefix: str, *, start_after: str = "", end_at: str | None = None
    ) -> AsyncIterator[ListPage]:
        if prefix == ACCEPTED:
            self.listed_after.append(start_after)
        async for page in super().list(prefix, start_after=start_after, end_at=end_at):
            yield page


make = partial(reconciler_world.make, list_batches_max=2, takeover_after_s=0)


async def test_an_interrupted_pass_continues_at_the_last_finished_boot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PassProgress, "is_due", lambda self: True)
    store = Interrupted()
    store.listed_after = []
    for agent in ("a", "b", "c", "d"):
        for seq in range(0, 50, 10):
            await accept(store, seq, agent=agent)
    first = make(store, 1)
    store.left = 12
    await first.progress.read()
    with pytest.raises(StoreUnavailable):
        await first._pass_loop.run_once(None, NextPass(start=True))
    record = decode_record(PASS, store.held[PASS].body, PassRecord)
    assert not record.ended
    assert not record.left
    assert record.spans[0].at != ""
    store.left, store.listed_after = 10**9, []
    again = make(store, 2)
    await again.progress.read()
    report = await again._pass_loop.run_once(None, NextPass(start=True, resume=True))
    assert store.listed_after[0] == record.spans[0].at
    assert report.began_ns == record.began_unix_ns
    assert report.complete_through_ns == record.began_unix_ns
    assert report.listed == 20
    assert not report.is_whole, "another process listed the first part"
    assert again.whole_pass is None
    batches = [one.identity for one in await enqueued(store)]
    assert len(batches) == len(set(batches)) == 20
    assert decode_record(PASS, store.held[PASS].body, PassRecord).ended


async def test_a_process_that_sees_another_one_make_progress_waits(store: SimStore) -> None:
    runtimes = [runtime_of(store, seed) for seed in (1, 2)]
    mine, rival = (PassProgress(store, runtime) for runtime in runtimes)
    await rival.read()
    assert await rival.save(stored(1, ended=False))
    await mine.read()
    assert mine.rival_runs
    assert not rival.rival_runs
    store.clock.at_ns += 61 * NS_PER_S
    await mine.read()
    assert not mine.rival_runs
    assert await mine.save(stored(1, ended=False))
    assert not await rival.save(stored(1, ended=False))  # another process wrote it


async def test_a_single_pass_packs_its_entries_however_long_it_takes(
    store: SimStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stores no progress, so it does not process a chunk that is not full."""
    monkeypatch.setattr(PassProgress, "is_due", lambda self: True)
    for number in range(8):
        await accept(store, 0, agent=f"host-{number}")
    await reconciler_world.make(store, pack_references=True).once()
    for prefix, objects in ((ACCEPTED_BY_TIME, 1), (RAW_BLOBS_BY_TIME, 1), (WORK_LISTS, 2)):
        assert len([key async for key in listed(store, prefix)]) == objects, prefix
    assert await store.get(PASS) == NotFound(date_ns=store.clock.now_ns())


async def listed(store: SimStore, prefix: str) -> AsyncIterator[ObjectKey]:
    async for page in store.list(prefix):
        for one in page.objects:
            yield one.key


async def test_batches_that_are_handed_over_count_as_left_until_they_are_enqueued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pass that continues from a progress without them would never see them again."""
    saved: list[PassRecord] = []

    async def give(
        self: HandOver, keys: Sequence[ObjectKey], announce: Callable[[], Awaitable[None]]
    ) -> PipelineResult:
        await announce()
        if len(saved) == 1:
            raise StoreUnavailable("get", keys[0], "planned")
        return PipelineResult()

    async def save(self: PassProgress, record: PassRecord) -> None:
        saved.append(record)

    monkeypatch.setattr(HandOver, "give", give)
    monkeypatch.setattr(PassProgress, "save", save)
    service = make(SimStore(), 1)
    options = PassOptions(progress=service.progress)
    boots = StoreTally({}, 0)
    one = PassRun(service._pass_loop.full_pass, at(0), options, None, boots)
    span = one.spans[0]
    span.left.append(ObjectKey("accepted/v1/agent=61/boot=62/0-1.json"))
    with pytest.raises(StoreUnavailable):
        await one.hand_over(span)
    assert (saved[0].left, one.has_left()) == (True, True)
    await one.hand_over(span)
    assert (saved[1].left, one.has_left()) == (True, False)
