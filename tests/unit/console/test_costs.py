"""The cost of a day, from rates, stored bytes and list prices."""

import pytest

from sluice_console.costs import (
    RequestRates,
    estimate_cost,
    rates_between,
    rates_of_batches,
    sum_rates,
)
from sluice_console.settings import StorePrices
from sluice_protocol.errors import BadUsage

PRICES = StorePrices()


def test_ten_batches_a_second_cost_what_their_requests_and_bytes_cost() -> None:
    """The arithmetic by hand: 2 592 000 PUT and as many GET a day, and 1 TB of blobs."""
    cost = estimate_cost(rates_of_batches(10.0, at_least=False), 1e12, PRICES)
    assert cost is not None
    parts = {one.name: one for one in cost.parts}
    assert parts["put"].quantity == 2_592_000
    assert parts["put"].usd_per_day == pytest.approx(12.96)
    assert parts["get"].usd_per_day == pytest.approx(1.0368)
    assert parts["storage"].usd_per_day == pytest.approx(0.7667, abs=1e-4)
    assert cost.usd_per_day == pytest.approx(14.7635, abs=1e-4)
    assert (cost.basis, cost.at_least, cost.price_source) == ("batches", False, PRICES.source)
    assert [one.name for one in cost.parts] == ["put", "get", "storage"]


def test_unknown_storage_or_a_cut_sample_make_the_cost_a_minimum() -> None:
    unknown = estimate_cost(rates_of_batches(1.0, at_least=False), None, PRICES)
    cut = estimate_cost(rates_of_batches(1.0, at_least=True), 1.0, PRICES)
    assert unknown is not None
    assert cut is not None
    assert unknown.at_least
    assert cut.at_least
    assert estimate_cost(None, 1e12, PRICES) is None


def test_calls_are_charged_by_their_class_and_deletions_are_free() -> None:
    earlier = {"create": 10.0, "get": 5.0}
    later = {"create": 30.0, "overwrite": 10.0, "get": 25.0, "head": 20.0, "list": 2.0}
    found = rates_between(earlier, later | {"delete": 99.0}, 10.0)
    assert found is not None
    assert found.per_s == {"put": 3.0, "get": 4.0, "list": 0.2}


@pytest.mark.parametrize("later", [{"create": 9.0}, {}])
def test_a_restarted_gateway_has_no_rate(later: dict[str, float]) -> None:
    assert rates_between({"create": 10.0}, later, 10.0) is None
    assert rates_between({"create": 10.0}, {"create": 11.0}, 0.0) is None


def test_the_rates_of_gateways_are_summed_and_a_missing_one_is_marked() -> None:
    one = RequestRates(per_s={"put": 1.0}, basis="counters")
    both = sum_rates([one, RequestRates(per_s={"put": 2.0, "get": 1.0}, basis="counters")])
    assert both is not None
    assert (both.per_s, both.at_least) == ({"put": 3.0, "get": 1.0}, False)
    partial = sum_rates([one, None])
    assert partial is not None
    assert partial.at_least
    assert sum_rates([]) is None
    assert sum_rates([None]) is None


def test_a_negative_price_is_refused() -> None:
    with pytest.raises(BadUsage, match="put_1000_usd must not be negative"):
        StorePrices(put_1000_usd=-1.0)
