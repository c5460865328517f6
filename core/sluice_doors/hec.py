"""Decode the requests of Splunk's HTTP Event Collector: events, metric events and raw lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sluice_doors.any_values import json_text, number
from sluice_doors.decoded import (
    ERROR_ATTRIBUTE,
    BodyUnreadable,
    DecodedRecords,
    check_count,
)
from sluice_doors.event_records import event_record, value_as_text
from sluice_doors.json_records import BAD_TIME, flat_fields, parse_time
from sluice_doors.json_values import (
    Unread,
    is_binary,
    read_json_lines,
    read_or_keep,
    read_tolerantly,
    value_texts,
)
from sluice_doors.otlp_attributes import FIELD, OWN, RESOURCE, Pairs, merged, shared_resource
from sluice_doors.otlp_values import GAUGE, STALE, exact_values
from sluice_doors.row_pieces import RowPieces, log_pieces, metric_pieces
from sluice_doors.tally import Tally
from sluice_protocol.columns import LogColumns, MetricColumns
from sluice_protocol.json_errors import UNREADABLE_JSON
from sluice_protocol.records import RAW_ATTRIBUTE, LogRecord, MetricPoint

FIELDS: Final = "fields."
"""The prefix of those indexed fields whose name the event has too."""
METADATA_NAMES: Final[Mapping[str, str]] = {
    "host": "host.name",
    "source": "com.splunk.source",
    "sourcetype": "com.splunk.sourcetype",
    "index": "com.splunk.index",
}
"""Splunk's fields under the names of OpenTelemetry's conventions."""
_EVENT_FIELDS: Final = frozenset({"time", "event", "fields"})
_METRIC: Final = "metric"
_METRIC_NAME: Final = "metric_name"
_METRIC_PREFIX: Final = "metric_name:"
_METRIC_VALUE: Final = "_value"
_NO_VALUE: Final = "metric has no number"


class _Event(NamedTuple):
    """One object of a request; `text` is what cannot be read, and `error` why."""

    found: Mapping[str, object] = MappingProxyType({})
    text: str = ""
    error: str = ""

    def metadata(self) -> dict[str, str]:
        """Return host, source, sourcetype and index, and what Splunk does not define."""
        pairs = [
            (METADATA_NAMES.get(key, key), value_as_text(value))
            for key, value in self.found.items()
            if key not in _EVENT_FIELDS and value not in (None, "")
        ]
        found = dict(pairs)
        if len(found) < len(pairs) or "" in found:
            return merged([(OWN, pairs)])
        return found


def decode_events(body: bytes, *, received_ns: int) -> tuple[DecodedRecords, ...]:
    """Return the logs and the metrics of a request; empty if the body has no object.

    Args:
        body: Objects one after the other, with or without whitespace between them, or arrays of
            objects.
        received_ns: The time of events that contain none.

    Raises:
        BodyUnreadable: No part of the body is a JSON object, and it is no text.
        BodyTooLarge: The records expand to more than the limits.
    """
    events: list[_Event] = []
    for one in _events(body):
        events.append(one)
        check_count(events)
    if not events:
        return ()
    if all(one.error for one in events) and is_binary(body):
        raise BodyUnreadable(
            "cannot read body as events of Splunk: it has no JSON object and is no text; a"
            " compressed body needs its Content-Encoding"
        )
    metadata = [one.metadata() for one in events]
    shared = shared_resource(metadata)
    reader = _Reader(shared=dict(shared), received_ns=received_ns)
    for one, stated in zip(events, metadata, strict=True):
        reader.add(one, stated)
    decoded = []
    if reader.logs:
        decoded.append(reader.log_tally.decoded(reader.logs.columns(), shared))
    if reader.points:
        decoded.append(reader.point_tally.decoded(reader.points.columns(), shared))
    return tuple(decoded)


def decode_raw(
    body: bytes, metadata: Mapping[str, str], *, received_ns: int
) -> tuple[DecodedRecords, ...]:
    """Return one record for each line that is not empty.

    Args:
        body: The lines, with LF or CR LF.
        metadata: Host, source, sourcetype and index from the query of the request.
        received_ns: The time of the records: lines have no separate time.

    Raises:
        BodyTooLarge: The records expand to more than the limits.
    """
    pairs = {METADATA_NAMES[key]: value for key, value in metadata.items() if value}
    shared = shared_resource([pairs])
    own = merged([(OWN, [pair for pair in pairs.items() if pair not in shared])])
    tally = Tally(timed=False)
    rows = log_pieces(tally)
    for line in body.split(b"\n"):
        text = line.rstrip(b"\r").decode(errors="surrogateescape")
        if text.strip():
            tally.add(own, text)
            rows.append(LogRecord(ts_ns=received_ns, body=text, attributes=own))
            check_count(rows)
    if not rows:
        return ()
    return (tally.decoded(rows.columns(), shared),)


@dataclass(slots=True)
class _Reader:
    """Maps the events of one request."""

    shared: Mapping[str, str]
    received_ns: int
    log_tally: Tally = field(default_factory=Tally)
    point_tally: Tally = field(default_factory=Tally)
    logs: RowPieces[LogRecord, LogColumns] = field(init=False)
    points: RowPieces[MetricPoint, MetricColumns] = field(init=False)

    def __post_init__(self) -> None:
        self.logs, self.points = log_pieces(self.log_tally), metric_pieces(self.point_tally)

    def add(self, event: _Event, stated: Mapping[str, str]) -> None:
        """Map one event, for which `stated` is its metadata.

        Raises:
            BodyTooLarge: The records expand to more than the limits.
        """
        metadata = [pair for pair in stated.items() if pair[0] not in self.shared]
        if event.error:
            self._raw(event.text, event.error, metadata)
            return
        fields = event.found.get("fields")
        values = _metric_values(event.found.get("event"), fields)
        if values is not None and isinstance(fields, dict):
            self._metrics(event.found, values, fields, metadata)
        elif event.found.get("event") is None:
            self._raw(json_text(event.found), "object has no event", ())
        else:
            self._log(event.found, metadata)

    def _log(self, found: Mapping[str, object], metadata: Pairs) -> None:
        ts_ns, stated = self._time(found.get("time"), self.log_tally)
        event, fields = found["event"], found.get("fields")
        if isinstance(fields, dict):
            indexed = _flat_texts(fields)
        else:
            indexed = [] if fields is None else [("fields", value_as_text(fields))]
        sources = ((FIELDS, indexed), (FIELD, stated), (RESOURCE, metadata))
        plain = event if isinstance(event, dict) else {"message": event}
        row = event_record(plain, ts_ns=ts_ns, sources=sources)
        self.log_tally.add(row.attributes, str(row.body))
        self.logs.append(row)

    def _raw(self, text: str, reason: str, metadata: Pairs) -> None:
        self.log_tally.timed = False
        self.log_tally.unreadable += 1
        attributes = merged([(OWN, [(ERROR_ATTRIBUTE, reason)]), (RESOURCE, metadata)])
        self.log_tally.add(attributes, text)
        self.logs.append(LogRecord(ts_ns=self.received_ns, body=text, attributes=attributes))

    def _metrics(
        self,
        found: Mapping[str, object],
        values: Mapping[str, object],
        fields: Mapping[str, object],
        metadata: Pairs,
    ) -> None:
        ts_ns, stated = self._time(found.get("time"), self.point_tally)
        taken = {_METRIC_NAME, _METRIC_VALUE} if _METRIC_NAME in fields else set()
        dimensions = {
            key: value
            for key, value in fields.items()
            if key not in taken and not key.startswith(_METRIC_PREFIX)
        }
        labels = merged([(OWN, _flat_texts(dimensions)), (FIELD, stated), (RESOURCE, metadata)])
        for name, stated_value in values.items():
            value, attributes = _number(stated_value), labels
            if value is None:
                self.point_tally.unreadable += 1
                raw = [(ERROR_ATTRIBUTE, _NO_VALUE), (RAW_ATTRIBUTE, json_text(stated_value))]
                attributes = merged([(OWN, list(labels.items())), (FIELD, raw)])
            exact = [("", STALE)] if value is None else _exact(stated_value, value)
            for suffix, one in exact:
                self.point_tally.add(attributes, name)
                self.points.append(
                    MetricPoint(ts_ns=ts_ns, name=name + suffix, value=one, attributes=attributes)
                )

    def _time(self, stated: object, tally: Tally) -> tuple[int, Pairs]:
        """Return the time of an event, and attributes with one that cannot be read."""
        ts_ns = None if stated is None else parse_time(stated, self.received_ns)
        if ts_ns is not None:
            return ts_ns, ()
        tally.timed = False
        if stated is None:
            return self.received_ns, ()
        tally.unreadable += 1
        return self.received_ns, [("time", value_as_text(stated)), (ERROR_ATTRIBUTE, BAD_TIME)]


def _metric_values(event: object, fields: object) -> dict[str, object] | None:
    """Return the values of a metric event by name; None if it is another event."""
    if event != _METRIC or not isinstance(fields, dict):
        return None
    found = {
        key.removeprefix(_METRIC_PREFIX): value
        for key, value in fields.items()
        if key.startswith(_METRIC_PREFIX) and key != _METRIC_PREFIX
    }
    name = fields.get(_METRIC_NAME)
    if isinstance(name, str) and name and _METRIC_VALUE in fields and name not in found:
        found[name] = fields[_METRIC_VALUE]
    return found or None


def _exact(stated: object, value: float) -> list[tuple[str, float]]:
    """Return a value, and what a double loses of an integer, by their suffixes."""
    found = exact_values("", stated, GAUGE) if isinstance(stated, int | str) else ()
    return [(suffix, one) for suffix, one, _, _ in found] or [("", value)]


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    try:
        return number(value)
    except ValueError:
        return None


def _flat_texts(found: Mapping[str, object]) -> list[tuple[str, str]]:
    return [(key, value_as_text(value)) for key, value in flat_fields(found, "").items()]


def _events(body: bytes) -> Iterator[_Event]:
    try:
        values = read_json_lines(body)
    except UNREADABLE_JSON:
        # Most clients put no line end between two objects.
        values = []
        for text in value_texts(body):
            values += _read_values(text)
            check_count(values)
    for value in values:
        yield from _of_value(value)


def _read_values(text: bytes) -> list[Any]:
    """Return the value of a text; if it is damaged, the values on each of its lines."""
    found = read_tolerantly(text, 1 if text.startswith(b"[") else 0)
    if not isinstance(found, Unread) or b"\n" not in text:
        return [found]
    values: list[Any] = []
    for line in filter(bytes.strip, text.split(b"\n")):
        values += map(read_or_keep, value_texts(line))
        check_count(values)
    return values if any(isinstance(one, dict) for one in values) else [found]


def _of_value(value: object) -> Iterator[_Event]:
    found = value if isinstance(value, list) else [value]
    check_count(found)
    for one in found:
        if isinstance(one, dict):
            yield _Event(found=one)
        elif isinstance(one, Unread):
            yield _Event(text=one.text, error=one.reason)
        else:
            yield _Event(text=json_text(one), error="event is not a JSON object")
