"""Map OTLP metrics to columns, point by point.

This is the mapping that `docs/doors.md` describes. Each data point becomes one or more series, as
Prometheus names them. What belongs to a metric and not to its points is a point of the separate
series `<name>_metadata`, so that it does not change the series of the metric.
"""

import itertools
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from sluice_doors.attributes import (
    BAD_TIME,
    FIELD,
    OWN,
    SPAN_ID_BYTES,
    TIME_KEY,
    TRACE_ID_BYTES,
    LazyMessages,
    RawRecord,
    ScopeGroup,
    Sources,
    choose_time,
    double_text,
    id_text,
    json_double,
    json_text,
    merged,
    number,
    otlp_time,
    outer_pairs,
    outer_sources,
    pairs_of,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_doors.json.values import integer_of
from sluice_doors.otlp.messages import (
    DataPoint,
    Exemplar,
    Metric,
    OtlpNumber,
    PartlyReadPoint,
    Points,
)
from sluice_doors.rows import Repeated, metric_pieces, repeated_part
from sluice_protocol.records import RAW_ATTRIBUTE, MetricPoint
from sluice_protocol.units import NS_PER_S

SCALES: Final = range(-20, 41)
"""Scales of exponential histograms that are converted; the protocol's clients use -10 to 20."""
_EXPONENT_MAX: Final = 1024.0
_EXPONENT_MIN: Final = -1080.0

Bucket = tuple[float, float]
"""An upper bound, inclusive, and the number of measurements up to it."""
Run = tuple[int, Sequence[float]]
"""Counts of consecutive buckets: bucket `i` of index `offset + i` ends at the base to that power
plus one.
"""


def bound_text(bound: float) -> str:
    """Return a bound as the text of `le` or `quantile`."""
    if math.isinf(bound):
        return "+Inf" if bound > 0 else "-Inf"
    return double_text(bound)


def explicit_buckets(
    bounds: Sequence[float], counts: Sequence[float], count: float
) -> list[Bucket]:
    """Return the buckets of a histogram; without counts, the one bucket of all measurements."""
    if not counts and not bounds:
        return [(math.inf, count)]
    if len(counts) != len(bounds) + 1:
        raise ValueError(
            f"histogram has {len(counts)} counts and {len(bounds)} bounds, not one count more"
        )
    if min(counts) < 0:
        raise ValueError("histogram has a negative count")
    return list(zip((*bounds, math.inf), itertools.accumulate(counts), strict=True))


def exponential_buckets(
    scale: int, zero: Bucket, positive: Sequence[Run], negative: Sequence[Run], count: float
) -> list[Bucket]:
    """Return the buckets of an exponential histogram: both edges of each one that is not empty.

    The base is 2 to the power of 2 to the power of -scale. `zero` is the zero threshold, and the
    count of values up to it. Counts are by rising index; those of negative values by the index of
    the absolute value.
    """
    if scale not in SCALES:
        raise ValueError(f"scale of an exponential histogram is out of range, scale={scale}")
    if zero[1] < 0 or any(min(counts, default=0) < 0 for _, counts in (*positive, *negative)):
        raise ValueError("exponential histogram has a negative count")
    buckets: dict[float, float] = {}
    total: float = 0
    for offset, counts in reversed(negative):
        top = offset + len(counts)
        edges = [-_edge(scale, top - place) for place in range(len(counts) + 1)]
        total = _add_run(buckets, total, edges, counts[::-1])
    if zero[1] or total:
        total += zero[1]
        buckets[zero[0] + 0.0] = total
    for offset, counts in positive:
        edges = [_edge(scale, offset + place) for place in range(len(counts) + 1)]
        total = _add_run(buckets, total, edges, counts)
    buckets.pop(math.inf, None)
    return [*buckets.items(), (math.inf, max(count, total))]


def _add_run(
    buckets: dict[float, float], total: float, edges: Sequence[float], counts: Sequence[float]
) -> float:
    """Add the edges of consecutive buckets: count `i` lies between the edges `i` and `i + 1`."""
    for place, edge in enumerate(edges):
        before = counts[place - 1] if place else 0
        after = counts[place] if place < len(counts) else 0
        total += before
        if before or after:
            buckets[edge] = total
    return total


def _edge(scale: int, index: int) -> float:
    exponent = math.ldexp(float(index), -scale)
    if exponent >= _EXPONENT_MAX:
        return math.inf
    return 2.0**exponent if exponent > _EXPONENT_MIN else 0.0


GAUGE, DELTA, CUMULATIVE = 0, 1, 2
STALE: Final = float(np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0])
"""Prometheus' stale marker: the NaN that ends a series."""

Value = tuple[str, float, int, tuple[str, str] | None]
"""A value: the suffix of its name, the value, its type, and the label of a bucket or quantile."""


REMAINDER: Final = "_remainder"
"""The suffix of the series with what a double loses of an integer."""


def value_of(point: DataPoint | Exemplar, *, stale: bool) -> float:
    """Return the value of a point."""
    value = _only_value(point)
    if value is not None:
        return number(value)
    if stale:
        return STALE
    raise ValueError("point has no value")


def value_series(point: DataPoint, type_: int, *, stale: bool) -> Iterator[Value]:
    """Yield the value of a gauge or sum."""
    value = _only_value(point)
    if value is None or point.as_double is not None:
        yield "", value_of(point, stale=stale), type_, None
    else:
        yield from exact_values("", value, type_)


def _only_value(point: DataPoint | Exemplar) -> OtlpNumber | None:
    if point.as_double is None:
        return point.as_int
    if point.as_int is not None:
        raise ValueError("point has two values: asDouble and asInt")
    return point.as_double


def exact_values(
    suffix: str, value: OtlpNumber, type_: int, label: tuple[str, str] | None = None
) -> Iterator[Value]:
    """Yield a value, and what a double loses of an integer.

    A double has 53 bits. The rest is a separate series, so that the sum of both is exact and no
    series has another name or attributes because of its value.
    """
    nearest = number(value)
    yield suffix, nearest, type_, label
    exact = integer_of(value)
    if exact is not None and math.isfinite(nearest) and exact != int(nearest):
        yield f"{suffix}{REMAINDER}", float(exact - int(nearest)), GAUGE, label


def histogram_values(kind: str, type_: int, point: DataPoint) -> Iterator[Value]:
    """Yield the values of a histogram."""
    count = _count(point.count)
    counts = [_count(one) for one in point.bucket_counts]
    buckets: Sequence[Bucket]
    if kind == "histogram":
        buckets = explicit_buckets([number(one) for one in point.explicit_bounds], counts, count)
    else:
        buckets = exponential_buckets(
            point.scale,
            (number(point.zero_threshold), _count(point.zero_count)),
            [(point.positive.offset, [_count(one) for one in point.positive.bucket_counts])],
            [(point.negative.offset, [_count(one) for one in point.negative.bucket_counts])],
            count,
        )
    yield from exact_values("_count", count, type_)
    for suffix, value, its_type in (
        ("_sum", point.sum, type_),
        ("_min", point.min, GAUGE),
        ("_max", point.max, GAUGE),
    ):
        if value is not None:
            yield suffix, number(value), its_type, None
    for bound, below in buckets:
        yield from exact_values("_bucket", below, type_, ("le", bound_text(bound)))


def summary_values(point: DataPoint) -> Iterator[Value]:
    """Yield the values of a summary."""
    yield from exact_values("_count", _count(point.count), CUMULATIVE)
    yield "_sum", number(point.sum or 0.0), CUMULATIVE, None
    for each in point.quantile_values:
        label = ("quantile", bound_text(number(each.quantile)))
        yield "", number(each.value), GAUGE, label


_INTEGER: Final = re.compile("-?(0|[1-9][0-9]{0,19})", re.ASCII)
_RAW_FIELDS: Final = (
    *("as_double", "as_int", "count", "sum", "min", "max", "bucket_counts", "explicit_bounds"),
    *("scale", "zero_count", "positive", "negative", "zero_threshold", "quantile_values"),
)


def raw_text(point: DataPoint) -> str:
    """Return the values of a point that are set, as canonical JSON text."""
    plain = msgspec.to_builtins({name: getattr(point, name) for name in _RAW_FIELDS})
    return json_text({name: found for name, one in plain.items() if (found := _plain(one))})


def _plain(value: object) -> object:
    match value:
        case dict():
            return {name: found for name, one in value.items() if (found := _plain(one))}
        case list() | tuple():
            return [_plain(one) for one in value]
        case str():
            return _number_of(value)
        case float():
            return json_double(value)
        case _:
            return value


def _number_of(text: str) -> object:
    return int(text) if _INTEGER.fullmatch(text) else text


def _count(value: int | str) -> int:
    found = integer_of(value) if value else 0
    if found is None:
        raise ValueError(f"count is no integer: {str(value)[:40]}")
    return found


UNNAMED: Final = "sluice.unnamed"
POINT: Final = "point."
"""The prefix of renamed attributes of a point."""
NO_RECORDED_VALUE: Final = 1
"""The flag of a point without a value: its series ended."""
_TEMPORALITIES: Final = {
    0: "unspecified",
    1: "delta",
    2: "cumulative",
    "": "unspecified",
    "AGGREGATION_TEMPORALITY_UNSPECIFIED": "unspecified",
    "AGGREGATION_TEMPORALITY_DELTA": "delta",
    "AGGREGATION_TEMPORALITY_CUMULATIVE": "cumulative",
}


def metrics_from_groups(
    groups: Iterable[ScopeGroup[Metric | RawRecord]], *, received_ns: int
) -> DecodedRecords | None:
    """Return the points of all groups; None if there are none."""
    tally = Tally()
    filled = [each for each in groups if _is_filled(each.records)]
    shared, outer = outer_sources(filled)
    tally.check_repeated(
        (_records_min(group.records), outer_pairs(sources))
        for group, sources in zip(filled, outer, strict=True)
    )
    points = metric_pieces(tally)
    for group, sources in zip(filled, outer, strict=True):
        around, repeated = repeated_around_points(sources)
        for metric in group.records:
            points.extend(metric_points(metric, around, received_ns, tally), repeated)
    return tally.decoded(points.columns(), shared) if points else None


@dataclass(frozen=True, slots=True)
class _Kind:
    """The data of a metric: the name of its kind, and the type of its points."""

    name: str
    points: Points
    type: int


def _kinds(metric: Metric) -> Iterator[_Kind]:
    """Yield the data of a metric; a valid one has one kind of data."""
    if metric.gauge is not None:
        yield _Kind("gauge", metric.gauge, GAUGE)
    if metric.sum is not None:
        type_ = _type(metric.sum)
        # A sum that can fall is no counter: consumers would take each fall for a restart.
        yield _Kind(
            "sum",
            metric.sum,
            GAUGE if type_ == CUMULATIVE and not metric.sum.is_monotonic else type_,
        )
    if metric.histogram is not None:
        yield _Kind("histogram", metric.histogram, _type(metric.histogram))
    if metric.exponential_histogram is not None:
        points = metric.exponential_histogram
        yield _Kind("exponential_histogram", points, _type(points))
    if metric.summary is not None:
        yield _Kind("summary", metric.summary, CUMULATIVE)


def temporality_text(value: int | str) -> str:
    """Return the name of a temporality; a value that the protocol does not define as it is."""
    return _TEMPORALITIES.get(value, str(value))


def _type(points: Points) -> int:
    return DELTA if temporality_text(points.aggregation_temporality) == "delta" else CUMULATIVE


def _is_filled(records: Collection[Metric | RawRecord]) -> bool:
    # The messages of protobuf are read later; scopes without points are left out before.
    return isinstance(records, LazyMessages) or any(map(has_points, records))


def has_points(metric: Metric | RawRecord) -> bool:
    """Return whether a metric becomes points."""
    return isinstance(metric, RawRecord) or any(kind.points.data_points for kind in _kinds(metric))


def _records_min(records: Collection[Metric | RawRecord]) -> int:
    """Return the least number of records that metrics become."""
    if isinstance(records, LazyMessages):
        return records.records_min
    return sum(1 if isinstance(one, RawRecord) else _metric_records_min(one) for one in records)


def _metric_records_min(metric: Metric) -> int:
    """Return the least number of records of a metric: points, exemplars, one with its metadata."""
    return sum(
        len(points) + sum(len(one.exemplars) for one in points) + 1
        for points in (kind.points.data_points for kind in _kinds(metric))
        if points
    )


_OWN_NAMES: Final = frozenset(
    {"le", "quantile", "start_time_unix_nano", ERROR_ATTRIBUTE, RAW_ATTRIBUTE}
)
_OWN_PREFIXES: Final = (POINT, FIELD)


def repeated_around_points(sources: Sources) -> tuple[Sources, Repeated | None]:
    """Return what to merge into each point of a scope, and what becomes columns; one is empty.

    Points have labels and errors that are named after the pairs of scope and resource, so these
    are merged first if they have such a name.
    """
    for key, _ in outer_pairs(sources):
        if key in _OWN_NAMES or key.startswith(_OWN_PREFIXES):
            return sources, None
    return repeated_part(sources)


def metric_points(
    metric: Metric | RawRecord, outer: Sources, received_ns: int, tally: Tally
) -> Iterator[MetricPoint]:
    """Yield the points of a metric, in the order that they have in the frame."""
    if isinstance(metric, RawRecord):
        tally.timed = False
        yield _raw(metric, metric.name or UNNAMED, received_ns, {}, outer, tally)
        return
    for kind in _kinds(metric):
        if kind.points.data_points:
            yield from _Series(metric, kind, outer, received_ns, tally).points()


def _raw(
    record: RawRecord,
    name: str,
    ts_ns: int,
    attributes: dict[str, str],
    outer: Sources,
    tally: Tally,
) -> MetricPoint:
    fields = [(ERROR_ATTRIBUTE, record.reason), (RAW_ATTRIBUTE, record.raw or record.text)]
    found = merged([(OWN, list(attributes.items())), (FIELD, fields), *outer])
    tally.unreadable += 1
    tally.foreign += record.is_foreign
    tally.add(found)
    return MetricPoint(ts_ns=ts_ns, name=name, value=STALE, attributes=found)


@dataclass(frozen=True, slots=True)
class _Series:
    """The series of the points of one metric."""

    metric: Metric
    kind: _Kind
    outer: Sources
    received_ns: int
    tally: Tally

    @property
    def name(self) -> str:
        return self.metric.name or UNNAMED

    def points(self) -> Iterator[MetricPoint]:
        last_ns = 0
        starts = [one.start_time_unix_nano for one in self.kind.points.data_points]
        together = len({str(start) for start in starts}) == 1
        for point in self.kind.points.data_points:
            ts_ns, attributes = self._place(point)
            last_ns = max(last_ns, ts_ns)
            values, raw = self._read(point)
            if raw is not None:
                yield _raw(raw, self.name, ts_ns, attributes, (), self.tally)
            self.tally.add(attributes, records=len(values))
            for suffix, value, type_, label in values:
                yield MetricPoint(
                    ts_ns=ts_ns,
                    name=self.name + suffix,
                    value=value,
                    type=type_,
                    attributes=_labelled(attributes, label) if label else attributes,
                )
            if not together:
                yield from self._created(point.start_time_unix_nano, ts_ns, attributes)
            for exemplar in point.exemplars:
                yield self._exemplar(exemplar, ts_ns, point)
        shared = merged(self.outer)
        if together:
            yield from self._created(starts[0], last_ns, shared)
        yield self._metadata(last_ns)

    def _read(self, point: DataPoint) -> tuple[list[Value], RawRecord | None]:
        """Return the values of a point, and the raw point if a part cannot be read."""
        reasons: list[str] = []
        values: list[Value] = []
        try:
            values = list(self._values(point))
        except ValueError as error:
            reasons.append(str(error))
        if isinstance(point, PartlyReadPoint):
            reasons.append(point.reason)
            return values, RawRecord(text=point.source, reason="; ".join(reasons))
        if reasons:
            return values, RawRecord(text=raw_text(point), reason=reasons[0])
        return values, None

    def _place(self, point: DataPoint) -> tuple[int, dict[str, str]]:
        time = choose_time(point.time_unix_nano, 0, received_ns=self.received_ns)
        self.tally.timed = self.tally.timed and time.timed
        fields = list(time.fields)
        if point.flags & ~NO_RECORDED_VALUE:
            fields.append(("flags", str(point.flags)))
        if time.error:
            fields.append((ERROR_ATTRIBUTE, time.error))
            self.tally.unreadable += 1
        return time.ts_ns, merged([(OWN, pairs_of(point.attributes)), (FIELD, fields), *self.outer])

    def _values(self, point: DataPoint) -> Iterator[Value]:
        stale = bool(point.flags & NO_RECORDED_VALUE)
        found: Iterable[Value]
        match self.kind.name:
            case "gauge" | "sum":
                found = value_series(point, self.kind.type, stale=stale)
            case "summary":
                found = summary_values(point)
            case _:
                found = histogram_values(self.kind.name, self.kind.type, point)
        for suffix, value, type_, label in found:
            yield suffix, STALE if stale else value, type_, label

    def _created(
        self, start: int | str, ts_ns: int, attributes: dict[str, str]
    ) -> Iterator[MetricPoint]:
        start_ns = otlp_time(start)
        if start_ns == 0:
            return
        found = attributes
        if start_ns is None:
            self.tally.unreadable += 1
            fields = [("start_time_unix_nano", str(start)), (ERROR_ATTRIBUTE, BAD_TIME)]
            found = merged([(OWN, list(attributes.items())), (FIELD, fields)])
        self.tally.add(found)
        value = STALE if start_ns is None else start_ns / NS_PER_S
        yield MetricPoint(ts_ns=ts_ns, name=f"{self.name}_created", value=value, attributes=found)

    def _exemplar(self, exemplar: Exemplar, ts_ns: int, point: DataPoint) -> MetricPoint:
        own_ns = otlp_time(exemplar.time_unix_nano)
        stated = (
            ("trace_id", id_text(exemplar.trace_id, TRACE_ID_BYTES)),
            ("span_id", id_text(exemplar.span_id, SPAN_ID_BYTES)),
            (TIME_KEY, "" if own_ns is not None else str(exemplar.time_unix_nano)),
            (ERROR_ATTRIBUTE, "" if own_ns is not None else BAD_TIME),
        )
        attributes = merged(
            [
                (OWN, pairs_of(exemplar.filtered_attributes)),
                (FIELD, [pair for pair in stated if pair[1]]),
                (POINT, pairs_of(point.attributes)),
                *self.outer,
            ]
        )
        self.tally.unreadable += own_ns is None
        self.tally.add(attributes)
        try:
            value = value_of(exemplar, stale=True)
        except ValueError:
            value = STALE
        return MetricPoint(
            ts_ns=own_ns or ts_ns,
            name=f"{self.name}_exemplar",
            value=value,
            attributes=attributes,
        )

    def _metadata(self, ts_ns: int) -> MetricPoint:
        stated = stated_pairs(
            self.kind.name,
            self.kind.points.aggregation_temporality,
            is_monotonic=self.kind.points.is_monotonic,
            unit=self.metric.unit,
            description=self.metric.description,
        )
        attributes = merged(
            [
                (OWN, stated),
                (OWN, pairs_of(self.metric.metadata, "metadata.")),
                *self.outer,
            ]
        )
        self.tally.add(attributes)
        return MetricPoint(
            ts_ns=ts_ns, name=f"{self.name}_metadata", value=1.0, attributes=attributes
        )


def stated_pairs(
    kind: str, temporality: int | str, *, is_monotonic: bool, unit: str, description: str
) -> list[tuple[str, str]]:
    """Return what a metric states about itself, as attributes of its point `_metadata`."""
    stated = [("type", kind)]
    if kind not in ("gauge", "summary"):
        stated.append(("temporality", temporality_text(temporality)))
    if kind == "sum":
        stated.append(("monotonic", json_text(is_monotonic)))
    stated += [("unit", unit), ("description", description)]
    return [pair for pair in stated if pair[1]]


def _labelled(attributes: dict[str, str], label: tuple[str, str]) -> dict[str, str]:
    """Return attributes with the label of a series; an attribute of its name is renamed."""
    key, value = label
    if key not in attributes:
        return {**attributes, key: value}
    return merged([(OWN, [label]), (POINT, list(attributes.items()))])
