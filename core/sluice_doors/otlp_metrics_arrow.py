"""Read OTLP metrics in protobuf through Arrow, without a Python loop over points.

numpy maps the points of gauges and sums to columns. All other metrics are mapped point by point by
`otlp_metrics`: histograms and summaries, metrics with exemplars, and metrics with a point of an
unusual form. The points keep the order that they have if all of them are mapped that way.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sluice_doors import otlp_wire
from sluice_doors.arrow_requests import (
    MappedRecords,
    OuterPairs,
    ScopedRecords,
    decode_pieces,
    parse_list,
    pieces_of,
)
from sluice_doors.arrow_texts import NotPlain, binary_array, text_of
from sluice_doors.decoded import DecodedRecords
from sluice_doors.number_points import NumberPoints, point_counts
from sluice_doors.otlp_attributes import RESOURCE, SCOPE, Sources
from sluice_doors.otlp_metrics import metric_points
from sluice_doors.otlp_protobuf import metrics_at
from sluice_doors.request_pieces import CUT_BYTES, PIECE_BYTES
from sluice_doors.row_pieces import metric_pieces
from sluice_doors.tally import Tally
from sluice_protocol.column_joins import join_columns
from sluice_protocol.columns import I64, MetricColumns
from sluice_protocol.envelope import Resource

_OTHER_KINDS: Final = ("histogram", "exponential_histogram", "summary")


class _Part(NamedTuple):
    """The points of some metrics of a request, and the metric of each."""

    columns: MetricColumns
    metric: I64


def decode_metrics(
    body: bytes, *, received_ns: int, cut_bytes: int = CUT_BYTES, piece_bytes: int = PIECE_BYTES
) -> DecodedRecords | None:
    """Return the points of a metrics request; None if it has none.

    Args:
        body: The request.
        received_ns: The time of points that contain none.
        cut_bytes: Size of a request from which it is decoded in pieces.
        piece_bytes: About the size of a piece. A metric is not cut.

    Raises:
        NotPlain: The request has to be mapped point by point.
        BodyUnreadable: A nested value, a resource or a scope is not valid.
        BodyTooLarge: The points expand to more than the limits.
    """
    pieces = pieces_of(body, cut_bytes=cut_bytes, piece_bytes=piece_bytes)
    return decode_pieces(pieces, partial(_mapped, received_ns=received_ns))


def _mapped(
    body: bytes, shared: Resource | None, tally: Tally, *, received_ns: int
) -> MappedRecords | None:
    """Return the points of a request or a piece of one, of which `shared` is known."""
    resources = parse_list(otlp_wire.message_type(otlp_wire.METRICS_REQUEST), body)
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
    parts = []
    if plain.any():
        parts.append(_Part(*numbers.columns(plain, outer, scope, received_ns, tally)))
    if (left := filled & ~plain).any():
        parts.append(_by_rows(body, left, outer, scope, received_ns, tally))
    return MappedRecords(_in_order(parts), outer.shared)


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
    for metric, place in zip(metrics_at(body, wanted.tolist()), places.tolist(), strict=True):
        before = len(rows)
        rows.extend(metric_points(metric, _sources(outer, int(scope[place])), received_ns, tally))
        counts.append(len(rows) - before)
    return _Part(rows.columns(), np.repeat(places, counts))


def _sources(outer: OuterPairs, scope: int) -> Sources:
    return (
        (SCOPE, list(outer.scopes[scope].items())),
        (RESOURCE, list(outer.rest[scope].items())),
    )


def _in_order(parts: Sequence[_Part]) -> MetricColumns:
    """Return the points of all parts in the order of their metrics."""
    joined = cast("MetricColumns", join_columns([one.columns for one in parts]))
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
        attributes = replace(
            attributes,
            offsets=offsets,
            keys=attributes.keys[places],
            values=text_of(binary_array(attributes.values).take(pa.array(places))),
        )
    return replace(
        columns,
        ts=columns.ts[order],
        name=columns.name[order],
        value=columns.value[order],
        type=columns.type[order],
        attributes=attributes,
    )
