from msgspec.structs import replace
from support.gateway import identity
from support.gc_world import MovedClock

from sluice_gateway.uploads.service import AcceptedCache, AcceptedFrame
from sluice_protocol.units import Digest, UnixNs

FRAMES = [
    (
        Digest(f"{number:064x}"),
        AcceptedFrame(identity=identity(seq=number), accepted_at_ns=UnixNs(1), lasts_ns=100),
    )
    for number in range(3)
]


def test_exactly_the_same_bytes_are_found() -> None:
    cache = AcceptedCache(10, MovedClock(0))
    cache.remember(*FRAMES[0])
    assert cache.find(FRAMES[0][0]) == FRAMES[0][1]
    assert cache.find(FRAMES[1][0]) is None


def test_the_entry_that_was_unused_for_the_longest_time_is_dropped() -> None:
    cache = AcceptedCache(2, MovedClock(0))
    cache.remember(*FRAMES[0])
    cache.remember(*FRAMES[1])
    assert cache.find(FRAMES[0][0]) is not None
    cache.remember(*FRAMES[2])
    assert len(cache) == 2
    assert cache.find(FRAMES[1][0]) is None
    assert cache.find(FRAMES[0][0]) is not None


def test_a_cache_of_size_zero_stays_empty() -> None:
    cache = AcceptedCache(0, MovedClock(0))
    cache.remember(*FRAMES[0])
    assert len(cache) == 0


class TwoClocks(MovedClock):
    """A machine whose two clocks run apart."""

    monotonic = 0

    def monotonic_ns(self) -> int:
        return self.monotonic


def test_an_entry_ends_with_its_proof_by_either_clock() -> None:
    """The monotonic clock stops during a suspension, and the wall clock can be set back."""
    for wall_ns, monotonic_ns in ((100, 0), (-1000, 100), (100, 100)):
        clock = TwoClocks(0)
        cache = AcceptedCache(10, clock)
        cache.remember(*FRAMES[0])
        clock.at_ns, clock.monotonic = min(wall_ns, 99), min(monotonic_ns, 99)
        assert cache.find(FRAMES[0][0]) is not None
        clock.at_ns, clock.monotonic = wall_ns, monotonic_ns
        assert cache.find(FRAMES[0][0]) is None
        assert len(cache) == 0


def test_an_upload_with_an_old_proof_is_not_remembered() -> None:
    cache = AcceptedCache(10, MovedClock(0))
    cache.remember(FRAMES[0][0], replace(FRAMES[0][1], lasts_ns=0))
    assert len(cache) == 0
