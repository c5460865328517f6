"""The cost of the object store per day at list price, as an estimate.

Requests are those that the gateways count, or those that each accepted batch needs. Storage is what
the newest audit listed. Transfer, versions of derived data and the lake are not contained.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Final, Literal

import msgspec

from sluice_protocol.prices import (
    DAY_S,
    MONTH_S,
    PriceTable,
    RequestCounts,
    request_dollars,
    requests_of,
    storage_dollars_per_month,
)

BATCH_REQUESTS: Final = RequestCounts(puts=3.0, gets=3.0)
"""Requests for each accepted batch: blob, manifest and reverse reference are written. The manifest
and the blob are read for the indexes, the blob for the lake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRates:
    """Requests per second, and how they were found.

    Attributes:
        basis: `counters` of the gateways, or `batches` that were accepted.
    """

    per_s: RequestCounts
    basis: Literal["counters", "batches"]
    at_least: bool = False


class CostPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the cost.

    Attributes:
        name: `puts`, `lists`, `gets` or `storage`.
        quantity: Requests per day, or stored bytes.
    """

    name: str
    quantity: float
    usd_per_day: float


class DailyCost(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated cost of a day.

    Attributes:
        usd_per_day: The sum of the parts.
        parts: The parts, the most expensive first.
        basis: How requests were counted: `counters` or `batches`.
        at_least: Whether something is missing: requests of a sample that was cut, or the storage
            of a deployment without an audit.
        price_source: What is priced, and where the prices are from, with their date.
    """

    usd_per_day: float
    parts: tuple[CostPart, ...]
    basis: str
    at_least: bool
    price_source: str


def rates_of_batches(batches_per_s: float, *, at_least: bool) -> RequestRates:
    """Return the requests that accepted batches need."""
    per_s = BATCH_REQUESTS.times(batches_per_s)
    return RequestRates(per_s=per_s, basis="batches", at_least=at_least)


def rates_between(
    earlier: Mapping[str, float], later: Mapping[str, float], span_s: float
) -> RequestRates | None:
    """Return the requests between two readings of the counters of one gateway.

    Both are calls by operation. Return None if a counter fell, because the gateway has restarted,
    or if an operation is unknown, because the gateway is newer.
    """
    if span_s <= 0 or any(later.get(op, 0.0) < count for op, count in earlier.items()):
        return None
    try:
        made = requests_of({op: count - earlier.get(op, 0.0) for op, count in later.items()})
    except KeyError:
        return None
    return RequestRates(per_s=made.times(1 / span_s), basis="counters")


def sum_rates(rates: Sequence[RequestRates | None]) -> RequestRates | None:
    """Return the sum over all gateways; None without any, `at_least` if one is missing."""
    known = [one.per_s for one in rates if one is not None]
    if not known:
        return None
    total = reduce(RequestCounts.__add__, known)
    return RequestRates(per_s=total, basis="counters", at_least=len(known) < len(rates))


def estimate_cost(
    rates: RequestRates | None, stored_bytes: float | None, prices: PriceTable
) -> DailyCost | None:
    """Return the cost of a day at the present rate; None without rates.

    `stored_bytes` are those of the blobs; None if no audit has listed them.
    """
    if rates is None:
        return None
    daily = rates.per_s.times(DAY_S)
    each = {
        "puts": RequestCounts(puts=daily.puts),
        "lists": RequestCounts(lists=daily.lists),
        "gets": RequestCounts(gets=daily.gets),
    }
    parts = [
        CostPart(name=name, quantity=getattr(one, name), usd_per_day=request_dollars(one, prices))
        for name, one in each.items()
    ]
    if stored_bytes is not None:
        dollars = storage_dollars_per_month(stored_bytes, prices) * DAY_S / MONTH_S
        parts.append(CostPart(name="storage", quantity=stored_bytes, usd_per_day=dollars))
    return DailyCost(
        usd_per_day=sum(one.usd_per_day for one in parts),
        parts=tuple(sorted(parts, key=lambda one: -one.usd_per_day)),
        basis=rates.basis,
        at_least=rates.at_least or stored_bytes is None,
        price_source=f"{prices.name}; {prices.source}",
    )
