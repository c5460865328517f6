"""Histograms over time: widths of buckets, the statement, and the buckets from its rows."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from sluice_protocol.timestamps import format_rfc3339
from sluice_query.filter_sql import field_sql
from sluice_query.request import Query
from sluice_query.result import ViewResult, number_json
from sluice_query.sql import RecordSources, record_time, select_sql
from sluice_query.statements import SqlStatement
from sluice_query.views import Histogram

BUCKETS_DEFAULT: Final = 60
BUCKETS_MIN: Final = 4
"""With fewer, the widest buckets could not cover all times."""
BUCKETS_MAX: Final = 1_000
TOP_DEFAULT: Final = 5
TOP_MAX: Final = 20
VALUE_CHARS_MAX: Final = 1_000
"""Longer values are cut."""

_SAME_VALUE: Final = "counted.found IS NOT DISTINCT FROM ranked.found"
_MS: Final = 1_000_000
_S: Final = 1_000 * _MS
_MIN: Final = 60 * _S
_HOUR: Final = 60 * _MIN
_DAY: Final = 24 * _HOUR
WIDTHS_NS: Final = (
    *(number * _MS for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *(number * _S for number in (1, 2, 5, 10, 15, 30)),
    *(number * _MIN for number in (1, 2, 5, 10, 15, 30)),
    *(number * _HOUR for number in (1, 2, 3, 6, 12)),
    *(number * _DAY for number in (1, 7, 30, 365, 3_650, 36_500, 100_000)),
)
"""The widths of buckets."""


class HistogramBucket(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One bucket.

    Attributes:
        ts: Its start, RFC 3339.
        count: Its number of records.
        counts: The number of records of each value of the split; absent without one.
        other: The number of records of all other values; absent where it is 0.
    """

    ts: str
    count: int
    counts: tuple[int, ...] = ()
    other: int = 0


class HistogramSplit(msgspec.Struct, frozen=True, kw_only=True):
    """By what the buckets are divided.

    Attributes:
        field: The field.
        values: The most frequent values, the most frequent first; null for records without it.
    """

    field: str
    values: tuple[str | float | int | None, ...]


class HistogramResult(ViewResult, frozen=True, kw_only=True):
    """A histogram.

    Attributes:
        step_ms: Width of a bucket, ms.
        buckets: Every bucket of the range, in order.
        split: By what the buckets are divided, or null.
    """

    step_ms: int
    buckets: tuple[HistogramBucket, ...]
    split: HistogramSplit | None = None


def choose_width(from_ns: int, to_ns: int, buckets: int) -> int:
    """Return the smallest width with which a range needs at most `buckets` buckets, ns."""
    for width_ns in WIDTHS_NS:
        if len(bucket_starts(from_ns, to_ns, width_ns)) <= buckets:
            return width_ns
    return WIDTHS_NS[-1]


def bucket_starts(from_ns: int, to_ns: int, width_ns: int) -> range:
    """Return the starts of the buckets of a range, Unix ns."""
    return range(from_ns // width_ns * width_ns, to_ns, width_ns)


def histogram_sql(query: Query, histogram: Histogram, sources: RecordSources) -> SqlStatement:
    """Return the statement for the counts.

    Its rows are the number of the bucket, a value, the rank of the value or None for all others,
    and the count.
    """
    # `//` truncates in DuckDB, so the remainder of a time before 1970 needs its own term.
    at, step = record_time(query.kind), int(histogram.step_ns)
    bucket = f"({at} // {step} - ({at} % {step} < 0)::INT)"
    if histogram.by is None:
        inner = select_sql(query, SqlStatement(f"{bucket} AS bucket"), sources)
        text = f"SELECT bucket, NULL, NULL, count(*) FROM ({inner.text}) GROUP BY bucket"  # noqa: S608 - constants
        return SqlStatement(text, inner.values)
    value = field_sql(histogram.by)
    columns = SqlStatement(f"{bucket} AS bucket, {value.text} AS found", value.values)
    inner = select_sql(query, columns, sources)
    counted = f"SELECT bucket, found, count(*) AS n FROM ({inner.text}) GROUP BY bucket, found"  # noqa: S608 - constants
    place = "row_number() OVER (ORDER BY sum(n) DESC, found) AS place"
    ranked = f"SELECT found, {place} FROM counted GROUP BY found ORDER BY place LIMIT ?"  # noqa: S608 - constants
    text = (
        f"WITH counted AS MATERIALIZED ({counted}), ranked AS ({ranked})"  # noqa: S608 - constants
        " SELECT bucket, any_value(ranked.found), place, sum(n)::BIGINT"
        f" FROM counted LEFT JOIN ranked ON {_SAME_VALUE} GROUP BY bucket, place"
    )
    return SqlStatement(text, (*inner.values, histogram.top))


def make_histogram(
    query: Query, histogram: Histogram, rows: Sequence[tuple[Any, ...]]
) -> HistogramResult:
    """Return the histogram of the rows of its statement."""
    step_ns = histogram.step_ns
    values = {place: found for _, found, place, _ in rows if place is not None}
    counts: dict[int, list[int]] = {}
    others: dict[int, int] = {}
    for bucket, _, place, count in rows:
        if place is None:
            others[bucket] = count
        else:
            counts.setdefault(bucket, [0] * len(values))[place - 1] = count
    nothing = (0,) * len(values)
    buckets = []
    for start_ns in bucket_starts(query.from_ns, query.to_ns, step_ns):
        place = start_ns // step_ns
        one, other = tuple(counts.get(place, nothing)), others.get(place, 0)
        split_other = other if histogram.by is not None else 0
        ts = format_rfc3339(start_ns)
        buckets.append(
            HistogramBucket(ts=ts, count=sum(one) + other, counts=one, other=split_other)
        )
    split = None
    if histogram.by is not None:
        shown = tuple(shown_value(values[place]) for place in sorted(values))
        split = HistogramSplit(field=histogram.by.name, values=shown)
    return HistogramResult(step_ms=step_ns // _MS, buckets=tuple(buckets), split=split)


def shown_value(value: object) -> str | float | int | None:
    """Return a value of a field for JSON, cut where it is very long."""
    if isinstance(value, str):
        return value[:VALUE_CHARS_MAX]
    shown: Any = number_json(value)
    number: str | float | int | None = shown
    return number
