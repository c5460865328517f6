"""List prices of an object store, and what requests and stored bytes cost at these prices.

The prices are data: `S3_US_EAST_1` is the default, and a file can replace any of them.

Sources: requests and storage of S3 Standard in us-east-1 from aws.amazon.com/s3/pricing, as quoted
by cloudburn.io/blog/amazon-s3-pricing (March 2026) and
usage.ai/blogs/aws/storage-cost/s3/cost-calculator (June 2026). HEAD costs as much as GET ("GET,
SELECT, and all other requests"); DELETE is free. Amazon counts a GB as 2^30 bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Final

import msgspec

from sluice_protocol.errors import BadUsage

MONTH_S: Final = 730 * 3600
"""Seconds of a month in price calculations: a twelfth of a year, as Amazon counts it."""
DAY_S: Final = 86_400
GIB_BYTES: Final = 1024**3

_WRITES: Final = frozenset(("create", "replace", "overwrite", "put", "copy", "post"))
_READS: Final = frozenset(("get", "head", "versioning"))


class StorageTier(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of stored bytes up to a total; `up_to_gib` is None for no end."""

    up_to_gib: float | None = None
    gib_month_dollars: float


class PriceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The prices of one store.

    Attributes:
        put_dollars_per_1000: PUT, COPY and POST, also of each part of a multipart upload.
        list_dollars_per_1000: LIST, for each page.
        get_dollars_per_1000: GET, HEAD and all other requests.
        storage: The tiers of stored bytes, from the first byte upward.
    """

    name: str = "Amazon S3 Standard, us-east-1"
    source: str = "aws.amazon.com/s3/pricing, as of June 2026"
    put_dollars_per_1000: float = 0.005
    list_dollars_per_1000: float = 0.005
    get_dollars_per_1000: float = 0.0004
    delete_dollars_per_1000: float = 0.0
    storage: tuple[StorageTier, ...] = (
        StorageTier(up_to_gib=50 * 1024, gib_month_dollars=0.023),
        StorageTier(up_to_gib=500 * 1024, gib_month_dollars=0.022),
        StorageTier(gib_month_dollars=0.021),
    )


S3_US_EAST_1: Final = PriceTable()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """Requests by the classes that stores charge for. The numbers may be rates or averages."""

    puts: float = 0.0
    lists: float = 0.0
    gets: float = 0.0
    deletes: float = 0.0

    def __add__(self, other: "RequestCounts") -> "RequestCounts":
        """Return the sum of both."""
        return RequestCounts(
            **{one.name: getattr(self, one.name) + getattr(other, one.name) for one in fields(self)}
        )

    def times(self, factor: float) -> "RequestCounts":
        """Return every count multiplied by a factor."""
        return RequestCounts(**{one.name: factor * getattr(self, one.name) for one in fields(self)})


def requests_of(calls: Mapping[str, float]) -> RequestCounts:
    """Return the requests of counted store calls.

    The names are those of the label `op` of `sluice_store_requests_total`. A `list` is one page.
    """
    counts = dict.fromkeys(("puts", "lists", "gets", "deletes"), 0.0)
    for name, calls_of_one in calls.items():
        counts[_class_of(name)] += calls_of_one
    return RequestCounts(**counts)


def _class_of(operation: str) -> str:
    if operation in _WRITES:
        return "puts"
    if operation in _READS:
        return "gets"
    return {"list": "lists", "delete": "deletes"}[operation]


def request_dollars(counts: RequestCounts, prices: PriceTable = S3_US_EAST_1) -> float:
    """Return what requests cost, US dollars."""
    return (
        counts.puts * prices.put_dollars_per_1000
        + counts.lists * prices.list_dollars_per_1000
        + counts.gets * prices.get_dollars_per_1000
        + counts.deletes * prices.delete_dollars_per_1000
    ) / 1000


def storage_dollars_per_month(stored_bytes: float, prices: PriceTable = S3_US_EAST_1) -> float:
    """Return what it costs to store bytes for a month, US dollars."""
    left_gib, below_gib, dollars = stored_bytes / GIB_BYTES, 0.0, 0.0
    for tier in prices.storage:
        size_gib = left_gib if tier.up_to_gib is None else tier.up_to_gib - below_gib
        in_tier_gib = min(left_gib, size_gib)
        dollars += in_tier_gib * tier.gib_month_dollars
        left_gib -= in_tier_gib
        below_gib += size_gib
    return dollars


def describe_requests(
    counts: RequestCounts, payload_bytes: float, prices: PriceTable = S3_US_EAST_1
) -> str:
    """Return the requests and dollars for each GiB of payload, for the output of a benchmark."""
    if payload_bytes <= 0:
        return "requests per GiB: no payload"
    gib = payload_bytes / GIB_BYTES
    each = counts.times(1 / gib)
    return (
        f"requests per GiB: {each.puts:,.0f} PUT, {each.lists:,.0f} LIST, {each.gets:,.0f} GET and"
        f" HEAD; {request_dollars(each, prices):.4f} dollars per GiB at list price"
        f" ({prices.name})"
    )


def parse_prices(document: Mapping[str, object]) -> PriceTable:
    """Return the price table of a decoded file; unknown names and negative prices are errors."""
    try:
        table = msgspec.convert(dict(document), PriceTable)
    except msgspec.ValidationError as error:
        raise BadUsage(f"cannot read the prices: {error}") from error
    ends = [tier.up_to_gib for tier in table.storage]
    bounded = [end for end in ends[:-1] if end is not None]
    if not ends or ends[-1] is not None or len(bounded) != len(ends) - 1:
        raise BadUsage(
            "cannot read the prices: every tier of storage but the last needs up_to_gib,"
            " and the last one must not have it"
        )
    if bounded != sorted(set(bounded)) or min([*bounded, 1.0]) <= 0:
        raise BadUsage("cannot read the prices: up_to_gib of the tiers of storage must increase")
    priced = [
        *(table.put_dollars_per_1000, table.list_dollars_per_1000),
        *(table.get_dollars_per_1000, table.delete_dollars_per_1000),
        *(tier.gib_month_dollars for tier in table.storage),
    ]
    if not all(0 <= price < float("inf") for price in priced):
        raise BadUsage("cannot read the prices: a price must be at least 0 and finite")
    return table
