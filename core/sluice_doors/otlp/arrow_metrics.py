"""Read OTLP metrics in protobuf through Arrow, without a Python loop over points.

numpy maps the points of gauges and sums to columns. All other metrics are mapped point by point by
`metrics.py`: histograms and summaries, metrics with exemplars, and metrics with a point of an
unusual form. The points keep the order that they have if all of them are mapped that way.

A metric becomes the values of its points, each with a point `_created` behind it if the points have
different starts, then one point `_created` if they have the same start, and one point `_metadata`.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_doors.arrow.pairs import Names, joined_attributes, shared_source
from sluice_doors.arrow.pieces import CUT_BYTES, PIECE_BYTES
from sluice_doors.arrow.requests import (
    MappedRecords,
    OuterPairs,
    ScopedRecords,
    decode_pieces,
    own_pairs,
    parse_list,
    pieces_of,
)
from sluice_doors.arrow.texts import (
    ArrowArray,
    NotPlain,
    binary_array,
    integers,
    list_offsets,
    text_of,
    value_kinds,
    value_texts,
)
from sluice_doors.attributes import (
    EMPTY_KEY,
    OWN,
    RESOURCE,
    SCOPE,
    Sources,
    merged,
    outer_pairs,
)
from sluice_doors.decoded import DecodedRecords, Tally
from sluice_doors.otlp.metrics import (
    CUMULATIVE,
    DELTA,
    GAUGE,
    NO_RECORDED_VALUE,
    STALE,
    UNNAMED,
    metric_points,
    repeated_around_points,
    stated_pairs,
)
from sluice_doors.otlp.protobuf import METRICS_REQUEST, message_type, metrics_at
from sluice_doors.rows import metric_pieces
from sluice_protocol.columns import (
    F64,
    I64,
    U8,
    U32,
    MetricColumns,
    NameColumn,
    join_columns,
    take_pairs,
)
from sluice_protocol.frame import Resource
from sluice_protocol.times import TS_END
from sluice_protocol.units import NS_PER_S
from sluice_protocol.values import CLASSES

Flags = npt.NDArray[np.bool_]
_VALUE, _CREATED, _CREATED_TOGETHER, _METADATA = range(4)
"""What a row is, in the order of the rows that follow a point."""
_UNSET: Final = pa.scalar(False)  # noqa: FBT003 - the only argument
_DELTA_TEMPORALITY: Final = 1
"""`AGGREGATION_TEMPORALITY_DELTA`"""
_EXACT_MAX: Final = 2.0**53
"""Larger integers may lose a part as doubles."""
_SUFFIXES: Final = ("", "_created", "_created", "_metadata")


def point_counts(metrics: ArrowArray, kind: str) -> I64:
    """Return the number of points of each metric that are of a kind."""
    return np.diff(list_offsets(metrics.field(kind).field("data_points"))).astype(np.int64)


class _Rows(NamedTuple):
    """Rows of one sort, of the points and metrics that are mapped.

    `key` is where a row is in the order of all rows. `metric` counts the metrics that are mapped.
    `owner` is the point whose attributes a row has.
    """

    key: I64
    metric: I64
    ts: I64
    value: F64
    sort: I64
    owner: I64


class NumberPoints:
    """The points of gauges and sums; `are_plain` metrics have no point of an unusual form."""

    def __init__(self, metrics: ArrowArray) -> None:
        self._metrics = metrics
        gauges, sums = (point_counts(metrics, kind) for kind in ("gauge", "sum"))
        flat = [metrics.field(kind).field("data_points").flatten() for kind in ("gauge", "sum")]
        self._points = pa.concat_arrays(flat) if all(map(len, flat)) else max(flat, key=len)
        self._is_gauge = gauges > 0
        self._first = np.where(
            self._is_gauge, np.cumsum(gauges) - gauges, len(flat[0]) + np.cumsum(sums) - sums
        )
        self.counts = gauges + sums
        self._time = integers(self._points.field("time_unix_nano"))
        self._start = integers(self._points.field("start_time_unix_nano"))
        self._stale = integers(self._points.field("flags")) == NO_RECORDED_VALUE
        self._value, unusual = self._values()
        metric = np.concatenate([np.repeat(np.arange(len(metrics)), one) for one in (gauges, sums)])
        with_unusual = np.bincount(metric[unusual], minlength=len(metrics)) > 0
        self.are_plain = (self._is_gauge != (sums > 0)) & ~with_unusual

    def _values(self) -> tuple[F64, Flags]:
        """Return the value of each point, and which points have an unusual form."""
        doubles, whole = self._points.field("as_double"), self._points.field("as_int")
        is_double, is_whole = _is_set(doubles), _is_set(whole)
        value = np.where(
            is_double, integers(doubles.fill_null(0.0)), integers(whole.fill_null(0)).astype(float)
        )
        flags = integers(self._points.field("flags"))
        exemplars = np.diff(list_offsets(self._points.field("exemplars")))
        return np.where(self._stale, STALE, value), (
            (self._time >= TS_END)
            | (self._start >= TS_END)
            | (flags > NO_RECORDED_VALUE)
            | (exemplars > 0)
            | ~(is_double | is_whole | self._stale)
            | (np.abs(integers(whole.fill_null(0)).astype(float)) >= _EXACT_MAX)
        )

    def columns(
        self, plain: Flags, outer: OuterPairs, scope: I64, received_ns: int, tally: Tally
    ) -> tuple[MetricColumns, I64]:
        """Return the points of some metrics, and the metric of each.

        `plain` selects the metrics, at least one. `scope` is the scope of each, as a place in
        `outer`.
        """
        metric = np.flatnonzero(plain)
        rows = self._rows(metric, received_ns, tally)
        described, kind = self._described(plain)
        names, name = _numbered(_texts(self._metrics.field("name"), plain), rows)
        known = Names()
        is_metadata = rows.sort == _METADATA
        sources = [
            own_pairs(self._points.field("attributes"), known, rows.owner),
            shared_source(
                OWN,
                [*described, {}],
                np.where(is_metadata, kind[rows.metric], len(described)),
                known,
            ),
            *outer.sources(known, scope[metric[rows.metric]]),
        ]
        types = np.where(rows.sort == _VALUE, self._types(plain)[rows.metric], GAUGE)
        columns = MetricColumns(
            ts=rows.ts,
            name=NameColumn(names=names, indexes=name),
            value=rows.value,
            type=types.astype(np.uint8),
            attributes=joined_attributes(sources, known, tally),
        )
        return columns, metric[rows.metric]

    def _rows(self, metric: I64, received_ns: int, tally: Tally) -> _Rows:
        """Return all rows of some metrics, in their order."""
        counts = self.counts[metric]
        ends = np.cumsum(counts)
        begins = ends - counts
        of_point = np.repeat(np.arange(len(metric)), counts)
        place = np.arange(ends[-1]) + np.repeat(self._first[metric] - begins, counts)
        time, start = self._time[place], self._start[place]
        tally.timed = tally.timed and bool((time != 0).all())
        ts = np.where(time != 0, time, np.uint64(received_ns)).astype(np.int64)
        last = np.maximum.reduceat(ts, begins)
        first = start[begins]
        together = np.minimum.reduceat(start, begins) == np.maximum.reduceat(start, begins)
        apart = np.flatnonzero(~together[of_point] & (start != 0))
        same = np.flatnonzero(together & (first != 0))
        nothing = len(self._points)
        everything = np.arange(len(metric))
        parts = [
            _rows_of(_VALUE, np.arange(len(place)), of_point, ts, self._value[place], place),
            _rows_of(
                _CREATED, apart, of_point[apart], ts[apart], _seconds(start[apart]), place[apart]
            ),
            _rows_of(
                _CREATED_TOGETHER, ends[same] - 1, same, last[same], _seconds(first[same]), nothing
            ),
            _rows_of(_METADATA, ends - 1, everything, last, np.ones(len(metric)), nothing),
        ]
        joined = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
        order = np.argsort(joined[0])
        return _Rows(*(column[order] for column in joined))

    def _types(self, plain: Flags) -> U8:
        """Return the type of the values of each of these metrics."""
        sums = self._metrics.field("sum")
        temporality = integers(sums.field("aggregation_temporality").fill_null(0))[plain]
        monotonic = integers(sums.field("is_monotonic").fill_null(_UNSET))[plain]
        delta = temporality == _DELTA_TEMPORALITY
        rising = np.where(monotonic, CUMULATIVE, GAUGE)
        return np.where(self._is_gauge[plain], GAUGE, np.where(delta, DELTA, rising)).astype(
            np.uint8
        )

    def _described(self, plain: Flags) -> tuple[list[dict[str, str]], I64]:
        """Return the distinct attributes of `_metadata`, and those of each of these metrics."""
        sums = self._metrics.field("sum")
        stated = zip(
            self._is_gauge[plain].tolist(),
            integers(sums.field("aggregation_temporality").fill_null(0))[plain].tolist(),
            integers(sums.field("is_monotonic").fill_null(_UNSET))[plain].tolist(),
            _texts(self._metrics.field("unit"), plain),
            _texts(self._metrics.field("description"), plain),
            _metadata(self._metrics.field("metadata"), plain),
            strict=True,
        )
        known: dict[object, int] = {}
        rows: list[dict[str, str]] = []
        kind = []
        for one in stated:
            if one not in known:
                is_gauge, temporality, monotonic, unit, description, metadata = one
                pairs = stated_pairs(
                    "gauge" if is_gauge else "sum",
                    temporality,
                    is_monotonic=monotonic,
                    unit=unit,
                    description=description,
                )
                known[one] = len(rows)
                typed = [(key, CLASSES[kind](value)) for key, value, kind in metadata]
                rows.append(merged([(OWN, pairs), (OWN, typed)]))
            kind.append(known[one])
        return rows, np.array(kind, np.int64)


def _rows_of(
    sort: int, point: I64, metric: I64, ts: I64, value: F64, owner: I64 | int
) -> tuple[npt.NDArray[np.generic], ...]:
    """Return rows that follow these points, as the fields of `_Rows`."""
    count = len(point)
    return (
        point * len(_SUFFIXES) + sort,
        metric,
        ts,
        value,
        np.full(count, sort),
        np.broadcast_to(owner, count),
    )


def _is_set(values: ArrowArray) -> Flags:
    return integers(values.is_valid()).astype(np.bool_)


def _seconds(starts: npt.NDArray[np.uint64]) -> F64:
    """Return times in seconds, rounded once as Python does."""
    distinct, places = np.unique(starts, return_inverse=True)
    return np.array([one / NS_PER_S for one in distinct.tolist()], np.float64)[places]


def _texts(values: ArrowArray, plain: Flags) -> list[str]:
    try:
        return [one.decode() for one in values.filter(pa.array(plain)).to_pylist()]
    except UnicodeDecodeError as error:
        raise NotPlain from error


def _metadata(listed: ArrowArray, plain: Flags) -> list[tuple[tuple[str, str, int], ...]]:
    """Return the keys, values and types of the metadata of each of these metrics."""
    pairs = listed.flatten()
    if not len(pairs):
        return [()] * int(plain.sum())
    if integers(pairs.field("key_strindex")).any():
        raise NotPlain
    every = np.ones(len(pairs), np.bool_)
    keys = [f"metadata.{key or EMPTY_KEY}" for key in _texts(pairs.field("key"), every)]
    values = _texts(value_texts(pairs.field("value")), every)
    kinds = value_kinds(pairs.field("value"))
    found = list(
        zip(keys, values, [0] * len(keys) if kinds is None else kinds.tolist(), strict=True)
    )
    edges = list_offsets(listed).tolist()
    return [tuple(found[edges[one] : edges[one + 1]]) for one in np.flatnonzero(plain).tolist()]


def _numbered(metrics: list[str], rows: _Rows) -> tuple[tuple[str, ...], U32]:
    """Return the distinct names of the rows, and the name of each."""
    known: dict[str, int] = {}
    base = np.array([known.setdefault(one or UNNAMED, len(known)) for one in metrics])
    used, places = np.unique(base[rows.metric] * len(_SUFFIXES) + rows.sort, return_inverse=True)
    listed = list(known)
    names: dict[str, int] = {}
    numbers = [
        names.setdefault(
            listed[one // len(_SUFFIXES)] + _SUFFIXES[one % len(_SUFFIXES)], len(names)
        )
        for one in used.tolist()
    ]
    return tuple(names), np.array(numbers, np.uint32)[places]


_OTHER_KINDS: Final = ("histogram", "exponential_histogram", "summary")
_EXEMPLAR_KINDS: Final = ("gauge", "sum", "histogram", "exponential_histogram")


class _Part(NamedTuple):
    """The points of some metrics of a request, and the metric of each."""

    columns: MetricColumns
    metric: I64


def decode_metrics(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the points of a metrics request, cut between metrics only; None if it has none."""
    pieces = pieces_of(body, cut_bytes=cut_bytes, piece_bytes=piece_bytes)
    return decode_pieces(pieces, partial(_mapped, received_ns=received_ns))


def _mapped(
    body: bytes, shared: Resource | None, tally: Tally, *, received_ns: int
) -> MappedRecords | None:
    """Return the points of a request or a piece of one; None if there are none."""
    resources = parse_list(message_type(METRICS_REQUEST), body)
    scoped = ScopedRecords(resources, "scope_metrics", "metrics")
    numbers = NumberPoints(scoped.records)
    others = np.sum([point_counts(scoped.records, kind) for kind in _OTHER_KINDS], axis=0)
    filled = (numbers.counts > 0) | (others > 0)
    if not len(filled):
        return None
    if not filled.all():
        # A metric without points may have data that is not known, or be of another kind, and
        # `shared` takes account of resources without points.
        raise NotPlain
    outer = scoped.outer(shared, filled)
    scope = np.zeros(len(filled), np.int64)
    scope[filled] = outer.owner
    plain = numbers.are_plain & (others == 0)
    left = filled & ~plain
    # Each metric has a record with its metadata.
    records_min = numbers.counts + others + 1
    if left.any():
        records_min += np.sum(
            [_exemplar_counts(scoped.records, one) for one in _EXEMPLAR_KINDS], axis=0
        )
    in_scopes = np.bincount(scope, records_min, minlength=len(outer.scopes)).astype(np.int64)
    tally.check_repeated(
        (count, outer_pairs(_sources(outer, place)))
        for place, count in enumerate(in_scopes.tolist())
    )
    parts = []
    if plain.any():
        parts.append(_Part(*numbers.columns(plain, outer, scope, received_ns, tally)))
    if left.any():
        parts.append(_by_rows(body, left, outer, scope, received_ns, tally))
    return MappedRecords(_in_order(parts), outer.shared)


def _exemplar_counts(metrics: ArrowArray, kind: str) -> I64:
    """Return the number of exemplars of each metric that is of a kind."""
    points = metrics.field(kind).field("data_points")
    edges = list_offsets(points)
    exemplars = list_offsets(points.flatten().field("exemplars"))
    counts: I64 = np.diff(exemplars[edges - edges[0]]).astype(np.int64)
    return counts


def _by_rows(
    body: bytes,
    wanted: npt.NDArray[np.bool_],
    outer: OuterPairs,
    scope: I64,
    received_ns: int,
    tally: Tally,
) -> _Part:
    """Map some metrics point by point."""
    rows, counts, places = metric_pieces(tally), [], np.flatnonzero(wanted)
    found = {
        one: repeated_around_points(_sources(outer, one)) for one in set(scope[places].tolist())
    }
    for metric, place in zip(metrics_at(body, wanted.tolist()), places.tolist(), strict=True):
        before = len(rows)
        around, repeated = found[int(scope[place])]
        rows.extend(metric_points(metric, around, received_ns, tally), repeated)
        counts.append(len(rows) - before)
    return _Part(rows.columns(), np.repeat(places, counts))


def _sources(outer: OuterPairs, scope: int) -> Sources:
    return (
        (SCOPE, list(outer.scopes[scope].items())),
        (RESOURCE, list(outer.rest[scope].items())),
    )


def _in_order(parts: Sequence[_Part]) -> MetricColumns:
    """Return the points of all parts in the order of their metrics."""
    joined = join_columns([one.columns for one in parts])
    metric = np.concatenate([one.metric for one in parts])
    if bool((metric[1:] >= metric[:-1]).all()):
        return joined
    return _taken(joined, np.argsort(metric, kind="stable"))


def _taken(columns: MetricColumns, order: I64) -> MetricColumns:
    """Return the points in another order."""
    attributes = columns.attributes
    if attributes is not None:
        counts = np.diff(attributes.offsets)[order]
        offsets = np.zeros(len(order) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        moved = attributes.offsets[:-1][order] - offsets[:-1]
        places = np.repeat(moved, counts) + np.arange(offsets[-1])
        values = text_of(binary_array(attributes.values).take(pa.array(places)))
        attributes = take_pairs(attributes, offsets, places, values)
    return replace(
        columns,
        ts=columns.ts[order],
        name=replace(columns.name, indexes=columns.name.indexes[order]),
        value=columns.value[order],
        type=columns.type[order],
        attributes=attributes,
    )
