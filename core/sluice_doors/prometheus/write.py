"""Remote write of Prometheus, 1.0 and 2.0, with native histograms as the series of classic ones.

Source: the two specifications of remote write; prometheus/prometheus, `prompb/types.proto`,
`prompb/remote.proto`, `prompb/io/prometheus/write/v2/types.proto`.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from aiohttp import hdrs, web
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from sluice_doors.attributes import BAD_TIME, FIELD, OWN, Pairs, merged
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    REASON_CHARACTERS_MAX,
    BodyUnreadable,
    DecodedRecords,
    Tally,
)
from sluice_doors.otlp.metrics import (
    CUMULATIVE,
    GAUGE,
    STALE,
    UNNAMED,
    Bucket,
    Run,
    Value,
    bound_text,
    exponential_buckets,
)
from sluice_doors.protobuf import (
    FOREIGN,
    arrow_road,
    base64_of_message,
    is_foreign,
    message_classes,
)
from sluice_doors.requests import DoorRequest, DoorResult, DoorRoute, refuse_in_text
from sluice_doors.rows import metric_pieces
from sluice_doors.table import DOORS
from sluice_protocol.errors import ErrorCode
from sluice_protocol.records import RAW_ATTRIBUTE, MetricPoint
from sluice_protocol.times import TS_END
from sluice_protocol.units import UnixNs
from sluice_web.problems import HttpRefusal

_SPAN: Final = {"offset": (1, "sint32"), "length": (2, "uint32")}
_HISTOGRAM: Final = {
    "count_int": (1, "uint64"),
    "count_float": (2, "?double"),
    "sum": (3, "double"),
    "schema": (4, "sint32"),
    "zero_threshold": (5, "double"),
    "zero_count_int": (6, "uint64"),
    "zero_count_float": (7, "?double"),
    "negative_spans": (8, "*Span"),
    "negative_deltas": (9, "*sint64"),
    "negative_counts": (10, "*double"),
    "positive_spans": (11, "*Span"),
    "positive_deltas": (12, "*sint64"),
    "positive_counts": (13, "*double"),
    "reset_hint": (14, "int32"),
    "timestamp": (15, "int64"),
    "custom_values": (16, "*double"),
    "start_timestamp": (17, "int64"),
}
MESSAGES_1: Final = {
    "Label": {"name": (1, "bytes"), "value": (2, "bytes")},
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64")},
    "Exemplar": {"labels": (1, "*Label"), "value": (2, "double"), "timestamp": (3, "int64")},
    "Span": _SPAN,
    "Histogram": _HISTOGRAM,
    "TimeSeries": {
        "labels": (1, "*Label"),
        "samples": (2, "*Sample"),
        "exemplars": (3, "*Exemplar"),
        "histograms": (4, "*Histogram"),
    },
    "Metadata": {
        "type": (1, "int32"),
        "family": (2, "bytes"),
        "help": (4, "bytes"),
        "unit": (5, "bytes"),
    },
    "WriteRequest": {"timeseries": (1, "*TimeSeries"), "metadata": (3, "*Metadata")},
}
_MESSAGES_2: Final = {
    "Sample": {"value": (1, "double"), "timestamp": (2, "int64"), "start_timestamp": (3, "int64")},
    "Exemplar": {
        "labels_refs": (1, "*uint32"),
        "value": (2, "double"),
        "timestamp": (3, "int64"),
    },
    "Span": _SPAN,
    "Histogram": _HISTOGRAM,
    "Metadata": {"type": (1, "int32"), "help_ref": (3, "uint32"), "unit_ref": (4, "uint32")},
    "TimeSeries": {
        "labels_refs": (1, "*uint32"),
        "samples": (2, "*Sample"),
        "histograms": (3, "*Histogram"),
        "exemplars": (4, "*Exemplar"),
        "metadata": (5, "Metadata"),
        "created_timestamp": (6, "int64"),
    },
    "Request": {"symbols": (4, "*bytes"), "timeseries": (5, "*TimeSeries")},
}


@cache
def _classes(version: int) -> dict[str, Any]:
    messages = MESSAGES_1 if version == 1 else _MESSAGES_2
    return message_classes(f"sluice_doors.prometheus.v{version}", messages)


def write_request_type() -> Descriptor:
    """Return the type of a request of remote write 1.0."""
    found: Descriptor = _classes(1)["WriteRequest"].DESCRIPTOR
    return found


def parse_write_request(body: bytes) -> Any:  # noqa: ANN401 - the class is made at run time
    """Return a request of remote write 1.0."""
    return _parse(1, "WriteRequest", body)


def parse_write_request_2(body: bytes) -> Any:  # noqa: ANN401 - the class is made at run time
    """Return a request of remote write 2.0."""
    return _parse(2, "Request", body)


def _parse(version: int, name: str, body: bytes) -> Any:  # noqa: ANN401 - made at run time
    try:
        return _classes(version)[name].FromString(body)
    except DecodeError as error:
        raise BodyUnreadable(f"cannot read body as remote write {version}.0: {error}") from error


CUSTOM_SCHEMA: Final = -53
"""The schema of histograms with stated bounds."""
SCHEMAS: Final = range(-4, 9)
_GAUGE_HINT: Final = 3
"""The reset hint of histograms that are not counters."""


def native_values(histogram: Any) -> Iterator[Value]:  # noqa: ANN401 - the class is made at run time
    """Yield the values of a native histogram."""
    type_ = GAUGE if histogram.reset_hint == _GAUGE_HINT else CUMULATIVE
    is_float = histogram.HasField("count_float")
    count = histogram.count_float if is_float else float(histogram.count_int)
    if math.isnan(histogram.sum) and not count:
        # The end of a series: Prometheus marks it in the sum. The buckets are not known any more.
        yield "_count", STALE, type_, None
        yield "_sum", histogram.sum, type_, None
        return
    positive = _runs(histogram.positive_spans, _counts(histogram, "positive"))
    if histogram.schema == CUSTOM_SCHEMA:
        buckets = _custom_buckets(histogram.custom_values, positive, count)
    else:
        if histogram.schema not in SCHEMAS:
            raise ValueError(
                f"schema of a native histogram is not known, schema={histogram.schema}"
            )
        zero_is_float = histogram.HasField("zero_count_float")
        zero = histogram.zero_count_float if zero_is_float else float(histogram.zero_count_int)
        negative = _runs(histogram.negative_spans, _counts(histogram, "negative"))
        # Index `i` ends at the base to the power `i` in Prometheus, and of `i + 1` in OTLP.
        buckets = exponential_buckets(
            histogram.schema,
            (histogram.zero_threshold, zero),
            [(offset - 1, counts) for offset, counts in positive],
            [(offset - 1, counts) for offset, counts in negative],
            count,
        )
    yield "_count", count, type_, None
    yield "_sum", histogram.sum, type_, None
    for bound, below in buckets:
        yield "_bucket", below, type_, ("le", bound_text(bound))


def _counts(histogram: Any, side: str) -> list[float]:  # noqa: ANN401 - made at run time
    """Return the counts of one side: stated, or the running sum of differences."""
    stated = getattr(histogram, f"{side}_counts")
    if stated:
        return list(stated)
    return [float(one) for one in itertools.accumulate(getattr(histogram, f"{side}_deltas"))]


def _runs(spans: Sequence[Any], counts: list[float]) -> list[Run]:
    """Return the counts of each span with its first index; `ValueError` if they do not match."""
    if sum(span.length for span in spans) != len(counts):
        raise ValueError("spans of a native histogram do not fit its counts")
    found: list[Run] = []
    index = place = 0
    for span in spans:
        index += span.offset
        found.append((index, counts[place : place + span.length]))
        index += span.length
        place += span.length
    return found


def _custom_buckets(bounds: Sequence[float], runs: Sequence[Run], count: float) -> list[Bucket]:
    total: float = 0
    below = [0.0] * (len(bounds) + 1)
    for offset, counts in runs:
        for place, one in enumerate(counts, offset):
            if not 0 <= place < len(below) or one < 0:
                raise ValueError("spans of a native histogram do not fit its bounds")
            below[place] += one
    found: list[Bucket] = []
    for bound, one in zip((*bounds, math.inf), below, strict=True):
        total += one
        found.append((bound, total))
    return [*found[:-1], (math.inf, max(total, count))]


VERSION_2: Final = "io.prometheus.write.v2.Request"
"""The parameter `proto` of the media type of remote write 2.0."""
NAME_LABEL: Final = "__name__"
NS_PER_MS: Final = 1_000_000
_MS_PER_S: Final = 1_000
_CUMULATIVE_SUFFIXES: Final = ("_total", "_count", "_sum", "_bucket")
_TYPES: Final = (
    *("unknown", "counter", "gauge", "histogram", "gaugehistogram", "summary", "info"),
    "stateset",
)
_COUNTER: Final = 1
_GAUGE_TYPES: Final = (2, 4, 6, 7)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCounts:
    """The numbers of samples, histograms and exemplars, for the headers of a 2.0 answer."""

    samples: int
    histograms: int
    exemplars: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteWrite:
    """A remote-write request: its points, and what it contained."""

    records: tuple[DecodedRecords, ...]
    written: WrittenCounts


def decode_remote_write(body: bytes, content_type: str, *, received_ns: int) -> RemoteWrite:
    """Return the points of a remote-write request.

    With `proto=io.prometheus.write.v2.Request` in `content_type` the body is of version 2.0.
    `received_ns` is the time of metadata in version 1.0, which contains none.
    """
    fast = None if VERSION_2 in content_type else arrow_road("prometheus.arrow", body)
    if fast is not None:
        with suppress(fast.NotPlain):
            found: RemoteWrite = fast.decode_write(body, received_ns=received_ns)
            return found
    reader = WritePoints(received_ns)
    points = metric_pieces(reader.tally)
    if VERSION_2 in content_type:
        points.extend(reader.version_2(parse_write_request_2(body)))
    else:
        points.extend(reader.version_1(parse_write_request(body)))
    written = WrittenCounts(
        samples=reader.samples, histograms=reader.histograms, exemplars=reader.exemplars
    )
    if not points:
        return RemoteWrite(records=(), written=written)
    return RemoteWrite(records=(reader.tally.decoded(points.columns()),), written=written)


@dataclass(slots=True)
class _Series:
    """A series: its name, labels and type, and the point type of its samples."""

    name: str
    labels: dict[str, str]
    type: int = 0

    @property
    def point_type(self) -> int:
        return point_type(self.name, self.type)


def point_type(name: str, type_: int = 0) -> int:
    """Return the type of the samples of a series; `type_` is that of its metadata in 2.0."""
    if type_ == _COUNTER:
        return CUMULATIVE
    counts = name.endswith(_CUMULATIVE_SUFFIXES)
    return CUMULATIVE if counts and type_ not in _GAUGE_TYPES else GAUGE


@dataclass(slots=True)
class WritePoints:
    """Maps one request, and counts it."""

    received_ns: int
    tally: Tally = field(default_factory=Tally)
    samples: int = 0
    histograms: int = 0
    exemplars: int = 0

    def version_1(self, request: Any) -> Iterator[MetricPoint]:  # noqa: ANN401 - run-time class
        """Yield the points of a request of version 1.0."""
        for one in request.timeseries:
            pairs = [(_text(label.name), _text(label.value)) for label in one.labels]
            series = _series(pairs)
            if _is_foreign(one, one.labels):
                yield self._raw(one, FOREIGN)
                continue
            yield from self._samples(series, one.samples)
            yield from self._histograms(series, one.histograms)
            for exemplar in one.exemplars:
                own = [(_text(label.name), _text(label.value)) for label in exemplar.labels]
                yield self._exemplar(series, exemplar, own, _last_ms(one))
        yield from self.described(request.metadata)

    def described(self, metadata: Iterable[Any]) -> Iterator[MetricPoint]:
        """Yield the points of the metadata of version 1.0."""
        for one in metadata:
            name = _text(one.family) or UNNAMED
            texts = (_text(one.help), _text(one.unit))
            self.tally.timed = False
            yield self._metadata(name, one.type, texts, self.received_ns)

    def version_2(self, request: Any) -> Iterator[MetricPoint]:  # noqa: ANN401 - run-time class
        """Yield the points of a request of version 2.0."""
        symbols = [_text(one) for one in request.symbols]
        described: dict[tuple[str, int, str, str], int] = {}
        for one in request.timeseries:
            try:
                labels, texts, of_exemplars = _texts_2(symbols, one)
            except BodyUnreadable as error:
                yield self._raw(one, error.reason)
                continue
            series = _series(labels)
            series.type = one.metadata.type
            last_ns = 0
            created: list[int] = [one.created_timestamp]
            for point in itertools.chain(
                self._samples(series, one.samples), self._histograms(series, one.histograms)
            ):
                last_ns = max(last_ns, point.ts_ns)
                yield point
            created += [each.start_timestamp for each in (*one.samples, *one.histograms)]
            for start_ms in dict.fromkeys(filter(None, created)):
                yield self._created(series, start_ms, last_ns)
            for exemplar, own in zip(one.exemplars, of_exemplars, strict=True):
                yield self._exemplar(series, exemplar, own, _last_ms(one))
            if one.metadata.type or any(texts):
                key = (series.name, one.metadata.type, *texts)
                described[key] = max(last_ns, described.get(key, 0))
        for (name, type_, help_text, unit), last_ns in described.items():
            yield self._metadata(name, type_, (help_text, unit), last_ns or self.received_ns)
            self.tally.timed = self.tally.timed and bool(last_ns)

    def _raw(self, series: Any, reason: str) -> MetricPoint:  # noqa: ANN401 - run-time class
        """Return a series that cannot be read as it came."""
        raw = base64_of_message(series)
        attributes = {ERROR_ATTRIBUTE: reason[:REASON_CHARACTERS_MAX], RAW_ATTRIBUTE: raw}
        self.tally.timed = False
        self.tally.unreadable += 1
        self.tally.foreign += reason == FOREIGN
        self.tally.add(attributes)
        return MetricPoint(ts_ns=self.received_ns, name=UNNAMED, value=STALE, attributes=attributes)

    def _samples(self, series: _Series, samples: Sequence[Any]) -> Iterator[MetricPoint]:
        self.samples += len(samples)
        self.tally.add(series.labels, records=len(samples))
        type_ = series.point_type
        for sample in samples:
            ts_ns, attributes = self._place(sample.timestamp, series.labels)
            yield MetricPoint(
                ts_ns=ts_ns, name=series.name, value=sample.value, type=type_, attributes=attributes
            )

    def _place(self, time_ms: int, labels: dict[str, str]) -> tuple[int, dict[str, str]]:
        """Return the time of a point, and its labels with the time if it is out of range."""
        ts_ns = time_ms * NS_PER_MS
        if 0 <= ts_ns < TS_END:
            return ts_ns, labels
        self.tally.timed = False
        self.tally.unreadable += 1
        fields = [("timestamp", str(time_ms)), (ERROR_ATTRIBUTE, BAD_TIME)]
        return self.received_ns, merged([(OWN, list(labels.items())), (FIELD, fields)])

    def _histograms(self, series: _Series, histograms: Iterable[Any]) -> Iterator[MetricPoint]:
        for one in histograms:
            self.histograms += 1
            ts_ns, labels = self._place(one.timestamp, series.labels)
            try:
                values = list(native_values(one))
            except ValueError as error:
                self.tally.unreadable += 1
                raw = [(ERROR_ATTRIBUTE, str(error)), (RAW_ATTRIBUTE, base64_of_message(one))]
                labels = merged([(OWN, list(labels.items())), (FIELD, raw)])
                values = [("", STALE, GAUGE, None)]
            self.tally.add(labels, records=len(values))
            for suffix, value, type_, label in values:
                attributes = labels if label is None else {**labels, label[0]: label[1]}
                yield MetricPoint(
                    ts_ns=ts_ns,
                    name=series.name + suffix,
                    value=value,
                    type=type_,
                    attributes=attributes,
                )

    def _exemplar(
        self,
        series: _Series,
        exemplar: Any,  # noqa: ANN401 - the class is made at run time
        own: Pairs,
        last_ms: int,
    ) -> MetricPoint:
        self.exemplars += 1
        found = merged([(OWN, own), ("point.", list(series.labels.items()))])
        ts_ns, attributes = self._place(exemplar.timestamp or last_ms, found)
        self.tally.add(attributes)
        return MetricPoint(
            ts_ns=ts_ns,
            name=f"{series.name}_exemplar",
            value=exemplar.value,
            attributes=attributes,
        )

    def _created(self, series: _Series, start_ms: int, ts_ns: int) -> MetricPoint:
        self.tally.add(series.labels)
        return MetricPoint(
            ts_ns=ts_ns or self.received_ns,
            name=f"{series.name}_created",
            value=start_ms / _MS_PER_S,
            attributes=series.labels,
        )

    def _metadata(self, name: str, type_: int, texts: tuple[str, str], ts_ns: int) -> MetricPoint:
        known = _TYPES[type_] if 0 <= type_ < len(_TYPES) else str(type_)
        stated = (("type", known), ("description", texts[0]), ("unit", texts[1]))
        attributes = {key: value for key, value in stated if value}
        self.tally.add(attributes)
        return MetricPoint(ts_ns=ts_ns, name=f"{name}_metadata", value=1.0, attributes=attributes)


def _texts_2(symbols: Sequence[str], series: Any) -> tuple[Pairs, tuple[str, str], list[Pairs]]:  # noqa: ANN401 - run-time class
    """Return labels, help and unit, and the labels of exemplars of a series of version 2.0."""
    if _is_foreign(series, ()):
        raise BodyUnreadable(FOREIGN)
    stated = series.metadata
    return (
        _referred(symbols, series.labels_refs),
        (_symbol(symbols, stated.help_ref), _symbol(symbols, stated.unit_ref)),
        [_referred(symbols, each.labels_refs) for each in series.exemplars],
    )


def _is_foreign(series: Any, labels: Iterable[Any]) -> bool:  # noqa: ANN401 - run-time class
    """Return whether a series, or one of its parts, is a message of another kind."""
    return any(map(is_foreign, (series, *labels, *series.samples)))


def _last_ms(series: Any) -> int:  # noqa: ANN401 - the class is made at run time
    """Return the time of the last sample, for exemplars that have none."""
    return max((one.timestamp for one in (*series.samples, *series.histograms)), default=0)


def _series(pairs: Pairs) -> _Series:
    names = [value for key, value in pairs if key == NAME_LABEL]
    labels = merged([(OWN, [pair for pair in pairs if pair[0] != NAME_LABEL])])
    if len(names) > 1:
        labels = merged([(OWN, list(labels.items())), (OWN, [(NAME_LABEL, names[1])])])
    return _Series(name=(names or [""])[0] or UNNAMED, labels=labels)


def _referred(symbols: Sequence[str], refs: Sequence[int]) -> list[tuple[str, str]]:
    """Return pairs of symbols."""
    if len(refs) % 2:
        raise BodyUnreadable("cannot read body as remote write 2.0: a label has no value")
    texts = [_symbol(symbols, one) for one in refs]
    return list(zip(texts[::2], texts[1::2], strict=True))


def _symbol(symbols: Sequence[str], ref: int) -> str:
    if ref == 0 and not symbols:
        return ""
    if ref >= len(symbols):
        raise BodyUnreadable(
            "cannot read body as remote write 2.0: a reference has no symbol,"
            f" reference={ref} symbols={len(symbols)}"
        )
    return symbols[ref]


def _text(data: bytes) -> str:
    return data.decode(errors="surrogateescape")


PROTOBUF_TYPE: Final = "application/x-protobuf"
_WRITTEN: Final = web.RequestKey("written", WrittenCounts)
_HEADER: Final = "X-Prometheus-Remote-Write-{}-Written"


def _read(request: web.Request) -> DoorRequest:
    if request.content_type != PROTOBUF_TYPE:
        raise HttpRefusal(ErrorCode.UNSUPPORTED_MEDIA_TYPE, f"send Content-Type: {PROTOBUF_TYPE}")
    media_type = request.headers[hdrs.CONTENT_TYPE]

    def decode(body: bytes, received_ns: UnixNs) -> Sequence[DecodedRecords]:
        found = decode_remote_write(body, media_type, received_ns=received_ns)
        request[_WRITTEN] = found.written
        return found.records

    return DoorRequest(
        door="prometheus",
        decode=decode,
        coding=request.headers.get(hdrs.CONTENT_ENCODING, "snappy"),
    )


def _respond(request: web.Request, result: DoorResult) -> web.Response:
    """Return 204 with the counts that version 2.0 requires; version 1.0 ignores them."""
    del result
    written = request[_WRITTEN]
    counts = {
        "Samples": written.samples,
        "Histograms": written.histograms,
        "Exemplars": written.exemplars,
    }
    fields = {_HEADER.format(name): str(count) for name, count in counts.items()}
    return web.Response(status=204, headers=fields)


ROUTES: Final = tuple(
    DoorRoute(
        door="prometheus",
        path=path,
        summary="Send metrics as the remote write of Prometheus does",
        media_type=PROTOBUF_TYPE,
        read=_read,
        respond=_respond,
        refuse=refuse_in_text,
    )
    for path in DOORS["prometheus"].paths
)
