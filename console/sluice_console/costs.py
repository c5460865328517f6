"""The cost of the object store per day at list price, as an estimate.

Requests are those that the gateways count, or those that each accepted batch needs. Storage is what
the newest audit listed. Transfer, versions of derived data and the lake are not contained.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from sluice_console.settings import StorePrices

DAY_S: Final = 86_400
DAYS_PER_MONTH: Final = 30
GB: Final = 10**9
REQUESTS_OF: Final[Mapping[str, "RequestClass"]] = {
    "create": "put",
    "overwrite": "put",
    "replace": "put",
    "list": "list",
    "list_incarnations": "list",
    "get": "get",
    "head": "get",
}
"""Operations of the store by the class in which they are charged; deletions are free."""
PUTS_PER_BATCH: Final = 3.0
"""Blob, manifest and reverse reference; index objects and work lists contain many batches."""
GETS_PER_BATCH: Final = 3.0
"""The manifest and the blob are read for the indexes, the blob for the lake."""
RequestClass = Literal["put", "list", "get"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRates:
    """Requests per second by class, and how they were found.

    Attributes:
        per_s: Requests per second.
        basis: `counters` of the gateways, or `batches` that were accepted.
        at_least: Whether the number is known to be too small.
    """

    per_s: Mapping[RequestClass, float]
    basis: Literal["counters", "batches"]
    at_least: bool = False


class CostPart(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the cost.

    Attributes:
        name: `put`, `list`, `get` or `storage`.
        quantity: Requests per day, or stored bytes.
        usd_per_day: The cost.
    """

    name: str
    quantity: float
    usd_per_day: float


class DailyCost(msgspec.Struct, frozen=True, kw_only=True):
    """The estimated cost of a day.

    Attributes:
        usd_per_day: The sum of the parts.
        parts: The parts.
        basis: How requests were counted: `counters` or `batches`.
        at_least: Whether something is missing: requests of a sample that was cut, or the storage
            of a deployment without an audit.
        price_source: Where the prices are from, with their date.
    """

    usd_per_day: float
    parts: tuple[CostPart, ...]
    basis: str
    at_least: bool
    price_source: str


def rates_of_batches(batches_per_s: float, *, at_least: bool) -> RequestRates:
    """Return the requests that accepted batches need."""
    per_s: dict[RequestClass, float] = {
        "put": batches_per_s * PUTS_PER_BATCH,
        "get": batches_per_s * GETS_PER_BATCH,
    }
    return RequestRates(per_s=per_s, basis="batches", at_least=at_least)


def rates_between(
    earlier: Mapping[str, float], later: Mapping[str, float], span_s: float
) -> RequestRates | None:
    """Return the requests between two readings of the counters of one gateway.

    Args:
        earlier: Calls by operation.
        later: The same, read later.
        span_s: The time between the two.

    Returns:
        None if a counter fell, because the gateway has restarted.
    """
    if span_s <= 0 or any(later.get(op, 0.0) < count for op, count in earlier.items()):
        return None
    per_s: dict[RequestClass, float] = {}
    for op, count in later.items():
        kind = REQUESTS_OF.get(op)
        if kind is not None:
            per_s[kind] = per_s.get(kind, 0.0) + (count - earlier.get(op, 0.0)) / span_s
    return RequestRates(per_s=per_s, basis="counters")


def sum_rates(rates: list[RequestRates | None]) -> RequestRates | None:
    """Return the sum over all gateways; None without any, `at_least` if one is missing."""
    known = [one for one in rates if one is not None]
    if not known:
        return None
    per_s: dict[RequestClass, float] = {}
    for one in known:
        for kind, value in one.per_s.items():
            per_s[kind] = per_s.get(kind, 0.0) + value
    return RequestRates(per_s=per_s, basis="counters", at_least=len(known) < len(rates))


def estimate_cost(
    rates: RequestRates | None, stored_bytes: float | None, prices: StorePrices
) -> DailyCost | None:
    """Return the cost of a day at the present rates; None without rates.

    Args:
        rates: Requests per second.
        stored_bytes: Bytes of the blobs; None if no audit has listed them.
        prices: List prices.
    """
    if rates is None:
        return None
    price: dict[RequestClass, float] = {
        "put": prices.put_1000_usd,
        "list": prices.list_1000_usd,
        "get": prices.get_1000_usd,
    }
    parts = [
        CostPart(name=kind, quantity=count * DAY_S, usd_per_day=count * DAY_S / 1000 * price[kind])
        for kind, count in rates.per_s.items()
    ]
    if stored_bytes is not None:
        daily = stored_bytes / GB * prices.gb_month_usd / DAYS_PER_MONTH
        parts.append(CostPart(name="storage", quantity=stored_bytes, usd_per_day=daily))
    return DailyCost(
        usd_per_day=sum(one.usd_per_day for one in parts),
        parts=tuple(sorted(parts, key=lambda one: -one.usd_per_day)),
        basis=rates.basis,
        at_least=rates.at_least or stored_bytes is None,
        price_source=prices.source,
    )
