"""Which requests of combined batches repeat earlier ones, and how they are stored."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs
from support.builders import ACCEPTED_AT_NS, manifest
from support.queue_store import SimIds, SimStore

from sluice_protocol.errors import InvalidRecord
from sluice_protocol.journals import DiscoveryRecord
from sluice_protocol.manifests import (
    AcceptedManifest,
    RequestPart,
    decode_parts,
    encode_parts,
    joined_ranges,
    kept_ranges,
)
from sluice_protocol.units import NS_PER_S
from sluice_queue.lane import Lane
from sluice_queue.register_client import Runtime
from sluice_reconciler.lanes import request_log as stored_runs
from sluice_reconciler.lanes import request_log as window_module
from sluice_reconciler.lanes.request_log import (
    KnownRequest,
    RequestLog,
    RequestWindow,
    count_merged,
    decode_run,
    encode_run,
    merge_runs,
    run_of,
)
from sluice_reconciler.lanes.state import LaneRecord
from sluice_reconciler.lanes.upkeep import forget_before_s

LANE = Lane(queue="spark", lane=0)


def request(number: int) -> bytes:
    """Return a request id that ends with zeros, which numpy would cut."""
    return bytes([number]) + bytes(15)


def batch(
    requests: Sequence[int], *, seq: int = 0, boot: str = "g1", at_s: int = 0
) -> AcceptedManifest:
    parts = [
        RequestPart(request=request(one), start=2 * at, count=2) for at, one in enumerate(requests)
    ]
    one = manifest(
        seq,
        count=2 * len(parts),
        agent="door:shop:c1",
        boot=boot,
        at_ns=ACCEPTED_AT_NS + at_s * NS_PER_S,
    )
    return replace(one, parts=encode_parts(parts))


def judged(window: RequestWindow, *batches: AcceptedManifest) -> list[object]:
    """Enqueue batches; return what is repeated in each."""
    found = window.judge(batches)
    window.add(found)
    return [one.repeated or () for one in found.batches]


def test_parts_are_read_as_they_were_written() -> None:
    parts = (
        RequestPart(request=request(1), start=0, count=2),
        RequestPart(request=bytes(range(16)), start=5, count=1),
    )
    assert decode_parts("k", encode_parts(parts), 6) == parts
    assert encode_parts(parts[:1]) == "AQAAAAAAAAAAAAAAAAAAAAAAAAACAAAA"


@pytest.mark.parametrize(
    "text", ["?", "AAAA", encode_parts([RequestPart(request=request(1), start=0, count=0)])]
)
def test_malformed_parts_are_refused(text: str) -> None:
    with pytest.raises(InvalidRecord):
        decode_parts("k", text, 10)


def test_parts_that_overlap_or_exceed_the_batch_are_refused() -> None:
    first = RequestPart(request=request(1), start=0, count=2)
    for second in (
        RequestPart(request=request(2), start=1, count=2),
        RequestPart(request=request(2), start=2, count=9),
    ):
        with pytest.raises(InvalidRecord):
            decode_parts("k", encode_parts([first, second]), 10)


def test_ranges_are_joined_and_the_rest_is_kept() -> None:
    assert joined_ranges([(4, 6), (0, 2), (2, 3)]) == ((0, 3), (4, 6))
    assert kept_ranges(8, [(4, 6), (0, 2)]) == ((2, 4), (6, 8))
    assert kept_ranges(4, [(0, 9)]) == ()
    assert kept_ranges(4, ()) == ((0, 4),)


def test_a_request_of_another_batch_is_repeated() -> None:
    window = RequestWindow()
    assert judged(window, batch([1, 2])) == [()]
    assert judged(window, batch([3, 2], boot="g2")) == [((2, 4),)]
    assert judged(window, batch([1, 3], seq=4)) == [((0, 4),)]


def test_the_earlier_batch_of_a_work_list_keeps_the_request() -> None:
    window = RequestWindow()
    assert judged(window, batch([1]), batch([1], boot="g2")) == [(), ((0, 2),)]


def test_a_batch_that_is_enqueued_again_keeps_what_it_kept() -> None:
    window = RequestWindow()
    first, second = batch([1, 2]), batch([2, 3], boot="g2")
    assert judged(window, first, second) == judged(window, first, second) == [(), ((0, 2),)]


def test_a_request_that_one_batch_has_twice_is_kept_once() -> None:
    assert judged(RequestWindow(), batch([1, 1])) == [((2, 4),)]


def test_judging_remembers_nothing() -> None:
    window = RequestWindow()
    window.judge([batch([1])])
    assert len(window) == 0
    assert judged(window, batch([1], boot="g2")) == [()]


def test_malformed_parts_are_logged_and_the_batch_is_kept_whole() -> None:
    with capture_logs() as logs:
        assert judged(RequestWindow(), replace(batch([1]), parts="?")) == [()]
    assert [one["event"] for one in logs] == ["request_parts_unreadable"]


def test_a_run_is_read_as_it_was_written() -> None:
    run = run_of({request(n): KnownRequest(batch=n << 60, accepted_s=n) for n in (3, 1, 2)})
    body = encode_run(run)
    assert len(body) == 16 + 3 * 28
    found = decode_run("k", body)
    assert found.find(run.requests) == run.find(run.requests)
    assert found.find(run.requests)[request(3)] == KnownRequest(batch=3 << 60, accepted_s=3)
    assert not found.find(np.array([request(9)], dtype="S16"))
    for broken in (body[:-1], b"LMRP" + body[4:], body[:10]):
        with pytest.raises(InvalidRecord):
            decode_run("k", broken)
    assert decode_run("k", encode_run(run_of({}))).find(run.requests) == {}


def test_a_merge_keeps_the_first_batch_and_the_last_time() -> None:
    old = run_of({request(1): KnownRequest(batch=7, accepted_s=1)})
    new = run_of({request(n): KnownRequest(batch=8, accepted_s=5) for n in (1, 2)})
    merged = merge_runs([old, new])
    assert merged.find(merged.requests) == {
        request(1): KnownRequest(batch=7, accepted_s=5),
        request(2): KnownRequest(batch=8, accepted_s=5),
    }
    assert len(merged.since(6)) == 0


def test_runs_of_about_the_same_size_are_merged() -> None:
    assert count_merged([], 5) == 0
    assert count_merged([100, 8, 5], 5) == 2
    assert count_merged([262_144], 262_144) == 0


class _Stored:
    """A log on a store, with the lane state that names its runs."""

    def __init__(self) -> None:
        self.store = SimStore()
        self.record = LaneRecord(queue="spark", lane=0, nonce="", producer_id="")
        self.log = self.owner(1)

    def owner(self, term: int) -> RequestLog:
        runtime = Runtime(clock=self.store.clock, ids=SimIds(term))
        return RequestLog(self.store, LANE, term, runtime)

    async def spill(self) -> None:
        spilled = await self.log.spill()
        self.record = replace(self.record, requests=spilled.named)
        self.log.swapped(spilled)

    @property
    def runs(self) -> list[str]:
        return [key for key in self.store.held if key.startswith(stored_runs.LANE_REQUESTS)]


async def test_a_new_owner_reads_runs_and_deletes_what_an_earlier_one_left() -> None:
    stored = _Stored()
    judged(stored.log.window, batch([1, 2]))
    await stored.spill()
    judged(stored.log.window, batch([3], boot="g2"))
    await stored.log.spill()  # the owner stops before it names this run
    assert len(stored.runs) == 2
    after = stored.owner(2)
    await after.load(stored.record, ())
    assert judged(after.window, batch([2, 3], boot="g3")) == [((0, 2),)]
    await after.collect(replace(stored.record, owner_term=2))
    assert len(stored.runs) == 1


async def test_a_lost_run_is_reported_and_does_not_stop_the_lane() -> None:
    stored = _Stored()
    judged(stored.log.window, batch([1]))
    await stored.spill()
    for body in (b"other bytes", None):
        key = stored.runs[0]
        if body is None:
            del stored.store.held[key]
        else:
            stored.store.held[key].body = body
        after = stored.owner(2)
        with capture_logs() as logs:
            await after.load(stored.record, ())
        assert [one["event"] for one in logs] == ["request_run_lost"]
        assert judged(after.window, batch([1], boot="g2")) == [()]
        assert (await after.spill()).named != stored.record.requests


async def test_replaced_runs_are_deleted_one_spill_later() -> None:
    stored = _Stored()
    for number in range(6):
        judged(stored.log.window, batch([number], boot=f"g{number}"))
        await stored.spill()
        assert len(stored.runs) <= len(stored.record.requests) + 2
    assert len(stored.log.window) == 6


async def test_old_requests_are_forgotten_and_the_number_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = _Stored()
    judged(stored.log.window, batch([1]))
    await stored.spill()
    stored.log.forgets_before_s = ACCEPTED_AT_NS // NS_PER_S + 1
    judged(stored.log.window, batch([2], boot="g2", at_s=2))
    await stored.spill()
    assert judged(stored.log.window, batch([1, 2], boot="g3", at_s=3)) == [((2, 4),)]
    monkeypatch.setattr(stored_runs, "WINDOW_REQUESTS_MAX", 0)
    with capture_logs() as logs:
        await stored.spill()
    assert "requests_forgotten_early" in [one["event"] for one in logs]
    assert len(stored.log.window) == 0


async def test_requests_that_are_known_are_not_stored_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = _Stored()
    one = batch([1, 2])
    judged(stored.log.window, one)
    monkeypatch.setattr(window_module, "UNSTORED_REQUESTS_MAX", 1)
    assert stored.log.window.must_spill
    await stored.spill()
    judged(stored.log.window, one)  # as a new owner does with recent batches
    assert stored.log.window.unstored == {}
    assert not stored.log.window.must_spill
    judged(stored.log.window, batch([2], boot="g2", at_s=5))
    first = ACCEPTED_AT_NS // NS_PER_S
    assert [one.accepted_s for one in stored.log.window.unstored.values()] == [first + 5]


def test_the_window_ends_by_the_time_through_which_discovery_is_complete() -> None:
    record = DiscoveryRecord(complete_through_unix_ns=10_000 * NS_PER_S, listed=0)
    lane = Lane(queue="spark", lane=1)
    assert forget_before_s(record, lane, 3600.0) == 10_000 - 3600 - 60
    later = replace(record, lanes={"001": 11_000 * NS_PER_S})
    assert forget_before_s(later, lane, 3600.0) == 11_000 - 3600 - 60
    other = Lane(queue="spark", lane=1, layout=1)
    assert forget_before_s(later, other, 3600.0) == 10_000 - 3600 - 60, "of another layout"
