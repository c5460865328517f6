from support.gateway import identity

from sluice_gateway.accepted_cache import AcceptedCache, AcceptedFrame
from sluice_protocol.units import Digest, UnixNs

FRAMES = [
    (
        Digest(f"{number:064x}"),
        AcceptedFrame(identity=identity(seq=number), accepted_at_ns=UnixNs(1)),
    )
    for number in range(3)
]


def test_exactly_the_same_bytes_are_found() -> None:
    cache = AcceptedCache(10)
    cache.remember(*FRAMES[0])
    assert cache.find(FRAMES[0][0]) == FRAMES[0][1]
    assert cache.find(FRAMES[1][0]) is None


def test_the_entry_that_was_unused_for_the_longest_time_is_dropped() -> None:
    cache = AcceptedCache(2)
    cache.remember(*FRAMES[0])
    cache.remember(*FRAMES[1])
    assert cache.find(FRAMES[0][0]) is not None
    cache.remember(*FRAMES[2])
    assert len(cache) == 2
    assert cache.find(FRAMES[1][0]) is None
    assert cache.find(FRAMES[0][0]) is not None


def test_a_cache_of_size_zero_stays_empty() -> None:
    cache = AcceptedCache(0)
    cache.remember(*FRAMES[0])
    assert len(cache) == 0
