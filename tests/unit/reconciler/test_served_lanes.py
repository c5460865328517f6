"""Who holds leases of a lane that is served over HTTP."""

import pytest
from support.builders import descriptors

from sluice_protocol.units import NS_PER_S
from sluice_reconciler import http_queue
from sluice_reconciler.http_queue import LaneLeases, LeaseHolder, holders_of


def leases(*claims: tuple[str, int, int]) -> LaneLeases:
    """Return the leases of claims: consumer, time of the claim and end in seconds."""
    lane = LaneLeases(acked_through=0)
    lane.offer(descriptors(1, len(claims)))
    for number, (consumer, at_s, end_s) in enumerate(claims):
        assert lane.claim(f"lease-{number}", consumer, at_s * NS_PER_S, end_s * NS_PER_S)
    return lane


def test_leases_are_added_up_by_consumer_and_ended_ones_do_not_count() -> None:
    lane = leases(("b", 5, 60), ("a", 1, 61), ("a", 8, 40), ("a", 0, 20), ("gone", 0, 20))
    found = holders_of(lane.leases, 20 * NS_PER_S)
    assert found == (
        LeaseHolder(consumer="a", entries=2, oldest_s=19, ends_s=20, attempts=0),
        LeaseHolder(consumer="b", entries=1, oldest_s=15, ends_s=40, attempts=0),
    )
    assert lane.expire(20 * NS_PER_S) == 2
    assert lane.claim("again", "c", 20 * NS_PER_S, 80 * NS_PER_S)
    assert holders_of(lane.leases, 20 * NS_PER_S)[-1].attempts == 1


def test_an_extended_lease_keeps_the_time_of_its_claim() -> None:
    lane = leases(("a", 1, 10))
    assert lane.extend("lease-0", 100 * NS_PER_S)
    (holder,) = holders_of(lane.leases, 51 * NS_PER_S)
    assert (holder.oldest_s, holder.ends_s) == (50, 49)


def test_the_list_of_consumers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_queue, "HOLDERS_MAX", 2)
    lane = leases(("a", 3, 9), ("b", 1, 9), ("c", 2, 9))
    assert [one.consumer for one in holders_of(lane.leases, 4 * NS_PER_S)] == ["b", "c"]
