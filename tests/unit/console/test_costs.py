"""The cost of a day, from rates, stored bytes and list prices."""

import pytest

from sluice_console.costs import (
    RequestRates,
    estimate_cost,
    rates_between,
    rates_of_batches,
    sum_rates,
)
from sluice_protocol.prices import GIB_BYTES, S3_US_EAST_1, PriceTable, RequestCounts


def test_ten_batches_a_second_cost_what_their_requests_and_bytes_cost() -> None:
    """The arithmetic by hand: 2 592 000 PUT and as many GET a day, and 1 000 GiB of blobs."""
    cost = estimate_cost(rates_of_batches(10.0, at_least=False), 1000 * GIB_BYTES, S3_US_EAST_1)
    parts = {one.name: one for one in cost.parts}
    assert parts["puts"].quantity == 2_592_000
    assert parts["puts"].usd_per_day == pytest.approx(12.96)
    assert parts["gets"].usd_per_day == pytest.approx(1.0368)
    assert parts["storage"].usd_per_day == pytest.approx(23.0 * 24 / 730)
    assert cost.usd_per_day == pytest.approx(12.96 + 1.0368 + 0.756164, abs=1e-5)
    assert (cost.basis, cost.at_least) == ("batches", False)
    assert [one.name for one in cost.parts] == ["puts", "gets", "storage", "lists"]
    assert cost.price_source == f"{S3_US_EAST_1.name}; {S3_US_EAST_1.source}"


def test_the_prices_are_those_of_the_table() -> None:
    prices = PriceTable(name="here", source="2026", put_dollars_per_1000=1.0)
    cost = estimate_cost(rates_of_batches(1.0, at_least=False), 0.0, prices)
    assert cost.parts[0].usd_per_day == pytest.approx(259.2)
    assert cost.price_source == "here; 2026"


def test_unknown_storage_or_a_cut_sample_make_the_cost_a_minimum() -> None:
    unknown = estimate_cost(rates_of_batches(1.0, at_least=False), None, S3_US_EAST_1)
    cut = estimate_cost(rates_of_batches(1.0, at_least=True), 1.0, S3_US_EAST_1)
    assert unknown.at_least
    assert cut.at_least
    assert estimate_cost(None, 1e12, S3_US_EAST_1) is None


def test_calls_between_two_readings_are_rates() -> None:
    earlier = {"create": 10.0, "get": 5.0}
    later = {"create": 30.0, "overwrite": 10.0, "get": 25.0, "head": 20.0, "list": 2.0}
    found = rates_between(earlier, later, 10.0)
    assert found.per_s == RequestCounts(puts=3.0, gets=4.0, lists=0.2)


@pytest.mark.parametrize("later", [{"create": 9.0}, {}, {"create": 11.0, "teleport": 1.0}])
def test_a_restarted_or_a_newer_gateway_has_no_rate(later: dict[str, float]) -> None:
    assert rates_between({"create": 10.0}, later, 10.0) is None
    assert rates_between({"create": 10.0}, {"create": 11.0}, 0.0) is None


def test_the_rates_of_gateways_are_summed_and_a_missing_one_is_marked() -> None:
    one = RequestRates(per_s=RequestCounts(puts=1.0), basis="counters")
    two = RequestRates(per_s=RequestCounts(puts=2.0, gets=1.0), basis="counters")
    both = sum_rates([one, two])
    assert (both.per_s, both.at_least) == (RequestCounts(puts=3.0, gets=1.0), False)
    partial = sum_rates([one, None])
    assert partial.at_least
    assert sum_rates([]) is None
    assert sum_rates([None]) is None
