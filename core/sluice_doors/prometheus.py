"""Decode remote write of Prometheus, 1.0 and 2.0."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from sluice_doors.arrow_roads import arrow_road
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    REASON_CHARACTERS_MAX,
    BodyUnreadable,
    DecodedRecords,
)
from sluice_doors.native_histograms import native_values
from sluice_doors.otlp_attributes import FIELD, OWN, Pairs, merged
from sluice_doors.otlp_metrics import UNNAMED
from sluice_doors.otlp_times import BAD_TIME
from sluice_doors.otlp_values import CUMULATIVE, GAUGE, STALE
from sluice_doors.prometheus_wire import parse_write_request, parse_write_request_2
from sluice_doors.proto_types import FOREIGN, base64_of_message, is_foreign
from sluice_doors.row_pieces import metric_pieces
from sluice_doors.tally import Tally
from sluice_protocol.records import RAW_ATTRIBUTE, MetricPoint
from sluice_protocol.times import TS_END

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

    Args:
        body: The body after decompression.
        content_type: `application/x-protobuf`; with `proto=io.prometheus.write.v2.Request`
            the body is of version 2.0.
        received_ns: The time of metadata in version 1.0, which contains none.

    Raises:
        BodyUnreadable: The body is not a request of that version.
        BodyTooLarge: The points expand to more than the limits.
    """
    fast = None if VERSION_2 in content_type else arrow_road("prometheus_arrow", body)
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
    """Return labels, help and unit, and the labels of exemplars of a series of version 2.0.

    Raises:
        BodyUnreadable: A reference has no symbol, or the series is a message of another kind.
    """
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
    """Return pairs of symbols.

    Raises:
        BodyUnreadable: A reference has no symbol, or a name has no value.
    """
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
