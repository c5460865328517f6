"""The time through which a spool is transferred, decided without a store or a clock."""

from sluice_gateway.spool.journal import TransferredTime
from sluice_protocol.units import ObjectKey, UnixNs

A, B, C = (ObjectKey(f"accepted/v1/{name}") for name in "abc")


def scanned(through: int = 5) -> TransferredTime:
    times = TransferredTime()
    times.through_ns, times.scanned = UnixNs(through), True
    return times


def test_before_the_scan_the_time_does_not_move() -> None:
    """Batches of an earlier process are not known yet."""
    times = TransferredTime()
    times.through_ns = UnixNs(5)
    assert times.advance(UnixNs(90)) == 5
    times.scanned = True
    assert times.advance(UnixNs(90)) == 90


def test_an_empty_spool_follows_the_authority() -> None:
    times = scanned()
    assert [times.advance(UnixNs(at)) for at in (10, 20, 30)] == [10, 20, 30]


def test_a_batch_that_has_not_landed_fixes_the_time() -> None:
    times = scanned()
    assert times.advance(UnixNs(10)) == 10
    times.add(A)
    assert [times.advance(UnixNs(at)) for at in (20, 30, 40)] == [10, 10, 10]
    times.remove(A)
    assert times.advance(UnixNs(50)) == 50


def test_a_batch_added_after_an_answer_does_not_delay_it() -> None:
    """Under a continuous load there is always a batch that is not transferred."""
    times = scanned()
    times.add(A)
    assert times.advance(UnixNs(20)) == 5
    times.add(B)
    times.remove(A)
    assert times.advance(UnixNs(30)) == 20
    times.add(C)
    times.remove(B)
    assert times.advance(UnixNs(40)) == 30


def test_a_duplicate_does_not_lose_the_place_of_its_batch() -> None:
    times = scanned()
    times.add(A)
    assert times.advance(UnixNs(20)) == 5
    times.add(A)
    assert times.advance(UnixNs(30)) == 5


def test_batches_land_in_any_order() -> None:
    times = scanned()
    times.add(A)
    times.add(B)
    assert times.advance(UnixNs(20)) == 5
    times.remove(B)
    assert times.advance(UnixNs(30)) == 5
    times.remove(A)
    assert times.advance(UnixNs(40)) == 40
