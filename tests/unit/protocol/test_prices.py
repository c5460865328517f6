"""Prices of requests and stored bytes, compared with sums that were computed by hand."""

import pytest

from sluice_protocol.errors import BadUsage
from sluice_protocol.prices import (
    GIB_BYTES,
    PriceTable,
    RequestCounts,
    describe_requests,
    parse_prices,
    request_dollars,
    requests_of,
    storage_dollars_per_month,
)

MILLION = 1_000_000


def test_each_class_has_its_price() -> None:
    assert request_dollars(RequestCounts(puts=MILLION)) == pytest.approx(5.0)
    assert request_dollars(RequestCounts(lists=MILLION)) == pytest.approx(5.0)
    assert request_dollars(RequestCounts(gets=MILLION)) == pytest.approx(0.4)
    assert request_dollars(RequestCounts(deletes=MILLION)) == 0.0


def test_store_calls_become_classes() -> None:
    calls = {"create": 2, "replace": 3, "overwrite": 4, "get": 5, "head": 6, "list": 7, "delete": 8}
    assert requests_of(calls) == RequestCounts(puts=9, lists=7, gets=11, deletes=8)
    with pytest.raises(KeyError):
        requests_of({"select": 1})


def test_counts_add_and_multiply() -> None:
    both = RequestCounts(puts=1, gets=2) + RequestCounts(puts=3, lists=4)
    assert both.times(2) == RequestCounts(puts=8, lists=8, gets=4)


def test_storage_is_charged_by_tiers() -> None:
    tib = 1024 * GIB_BYTES
    assert storage_dollars_per_month(0) == 0.0
    assert storage_dollars_per_month(tib) == pytest.approx(1024 * 0.023)
    assert storage_dollars_per_month(60 * tib) == pytest.approx(1024 * (50 * 0.023 + 10 * 0.022))
    expected = 1024 * (50 * 0.023 + 450 * 0.022 + 100 * 0.021)
    assert storage_dollars_per_month(600 * tib) == pytest.approx(expected)


def test_a_file_replaces_single_prices() -> None:
    prices = parse_prices({"put_dollars_per_1000": 0.0, "storage": [{"gib_month_dollars": 0.01}]})
    assert request_dollars(RequestCounts(puts=9, gets=MILLION), prices) == pytest.approx(0.4)
    assert storage_dollars_per_month(100 * GIB_BYTES, prices) == pytest.approx(1.0)
    assert parse_prices({}) == PriceTable()


@pytest.mark.parametrize(
    "document",
    [
        {"put_dollars": 1},
        {"put_dollars_per_1000": "5"},
        {"get_dollars_per_1000": -1},
        {"get_dollars_per_1000": float("nan")},
        {"storage": []},
        {"storage": [{"gib_month_dollars": 1, "up_to_gib": 5}]},
        {"storage": [{"gib_month_dollars": 1}, {"gib_month_dollars": 1}]},
        {
            "storage": [
                {"gib_month_dollars": 1, "up_to_gib": 5},
                {"gib_month_dollars": 1, "up_to_gib": 4},
                {"gib_month_dollars": 1},
            ]
        },
    ],
)
def test_a_wrong_file_is_refused(document: dict[str, object]) -> None:
    with pytest.raises(BadUsage, match="cannot read the prices"):
        parse_prices(document)


def test_a_benchmark_prints_requests_and_dollars_per_gib() -> None:
    assert describe_requests(RequestCounts(puts=1), 0) == "requests per GiB: no payload"
    text = describe_requests(RequestCounts(puts=1024, gets=10), GIB_BYTES / 2)
    assert text.startswith("requests per GiB: 2,048 PUT, 0 LIST, 20 GET and HEAD; 0.0102 dollars")
