"""Map OTLP spans to columns, span by span.

This is the mapping that `docs/doors.md` describes. It serves JSON, and protobuf where
`arrow_spans.py` does not; a property test compares the two.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from sluice_doors.attributes import (
    BAD_TIME,
    FIELD,
    OWN,
    SPAN_ID_BYTES,
    TRACE_ID_BYTES,
    RawRecord,
    ScopeGroup,
    Sources,
    count_text,
    id_text,
    json_map,
    json_text,
    merged,
    otlp_time,
    pairs_of,
)
from sluice_doors.decoded import ERROR_ATTRIBUTE, DecodedRecords, Tally
from sluice_doors.otlp.messages import OtlpSpan, PartlyReadSpan, SpanEvent, SpanLink
from sluice_doors.otlp.metrics import UNNAMED
from sluice_doors.rows import records_of_groups, span_pieces
from sluice_protocol.fields import SPANS
from sluice_protocol.records import RAW_ATTRIBUTE, SpanRecord
from sluice_protocol.timestamps import format_rfc3339

_LABELS: Final = {field.name: field.labels for field in SPANS.fields}
KIND_MAX, STATUS_MAX = (len(_LABELS[name]) - 1 for name in ("span_kind", "status"))
"""The largest numbers of kinds and of status codes that have a name."""


def _numbers(prefix: str, labels: Sequence[str]) -> dict[int | str, int]:
    """Return the number of each form of an enumeration: number, number as text, name in JSON."""
    found: dict[int | str, int] = {"": 0}
    for at, label in enumerate(labels):
        found |= dict.fromkeys((at, str(at), f"{prefix}{label.upper()}"), at)
    return found


_KINDS: Final = _numbers("SPAN_KIND_", _LABELS["span_kind"])
_STATUSES: Final = _numbers("STATUS_CODE_", _LABELS["status"])

SpanGroup = ScopeGroup[OtlpSpan | RawRecord]


def spans_from_groups(groups: Iterable[SpanGroup], *, received_ns: int) -> DecodedRecords | None:
    """Return the spans of all groups; None if there are none."""
    tally = Tally()
    return records_of_groups(
        groups,
        span_pieces(tally),
        lambda span, outer: _span(span, outer, received_ns, tally),
        tally,
    )


def _span(span: OtlpSpan | RawRecord, outer: Sources, received_ns: int, tally: Tally) -> SpanRecord:
    if isinstance(span, RawRecord):
        return _raw_span(span, outer, received_ns, tally)
    start_ns, end_ns = otlp_time(span.start_time_unix_nano), otlp_time(span.end_time_unix_nano)
    tally.timed = tally.timed and bool(start_ns or end_ns)
    events, links = list_texts(span.events, span.links, tally)
    own_error = BAD_TIME if start_ns is None or end_ns is None or has_bad_time(span.events) else ""
    source, reason = (span.source, span.reason) if isinstance(span, PartlyReadSpan) else ("", "")
    tally.unreadable += bool(own_error or reason)
    kind, status = _KINDS.get(span.kind), _STATUSES.get(span.status.code)
    stated = (
        ("start_time_unix_nano", "" if start_ns else str(span.start_time_unix_nano)),
        ("end_time_unix_nano", "" if end_ns else str(span.end_time_unix_nano)),
        ("kind", str(span.kind) if kind is None else ""),
        ("status_code", str(span.status.code) if status is None else ""),
        ("trace_flags", count_text(span.flags)),
        ("dropped_attributes_count", count_text(span.dropped_attributes_count)),
        ("dropped_events_count", count_text(span.dropped_events_count)),
        ("dropped_links_count", count_text(span.dropped_links_count)),
        (ERROR_ATTRIBUTE, "; ".join(filter(None, (own_error, reason)))),
        (RAW_ATTRIBUTE, source),
    )
    fields = [pair for pair in stated if pair[1]]
    row = SpanRecord(
        ts_ns=start_ns or end_ns or received_ns,
        name=span.name or UNNAMED,
        span_kind=kind or 0,
        duration_ns=end_ns - start_ns if start_ns and end_ns else 0,
        status=status or 0,
        status_message=span.status.message,
        trace_id=id_text(span.trace_id, TRACE_ID_BYTES),
        span_id=id_text(span.span_id, SPAN_ID_BYTES),
        parent_id=id_text(span.parent_span_id, SPAN_ID_BYTES),
        trace_state=span.trace_state,
        events=events,
        links=links,
        attributes=merged([(OWN, pairs_of(span.attributes)), (FIELD, fields), *outer]),
    )
    tally.add(row.attributes, row.status_message + row.events + row.links)
    return row


def _raw_span(record: RawRecord, outer: Sources, received_ns: int, tally: Tally) -> SpanRecord:
    """Return a span that cannot be read, with its text as an attribute."""
    fields = [(ERROR_ATTRIBUTE, record.reason), (RAW_ATTRIBUTE, record.raw or record.text)]
    attributes = merged([(OWN, fields), *outer])
    tally.timed = False
    tally.unreadable += 1
    tally.foreign += record.is_foreign
    tally.add(attributes)
    return SpanRecord(ts_ns=received_ns, name=UNNAMED, attributes=attributes)


def list_texts(
    events: Sequence[SpanEvent], links: Sequence[SpanLink], tally: Tally
) -> tuple[str, str]:
    """Return the events and links of a span as text; `tally` counts them."""
    if not events and not links:
        return "", ""
    tally.add_sizes(_pairs_in(events) + _pairs_in(links), 0)
    return _list_text(map(_event, events)), _list_text(map(_link, links))


def has_bad_time(events: Iterable[SpanEvent]) -> bool:
    """Return whether the time of an event is out of range."""
    return any(otlp_time(one.time_unix_nano) is None for one in events)


def _pairs_in(parts: Collection[SpanEvent] | Collection[SpanLink]) -> int:
    """Return how much of the limit of attributes events or links use; each counts as one."""
    return len(parts) + sum(len(one.attributes) for one in parts)


def _list_text(parts: Iterable[dict[str, object]]) -> str:
    """Return a canonical JSON list without members that are not set; empty for an empty list."""
    listed = [{name: value for name, value in one.items() if value} for one in parts]
    return json_text(listed) if listed else ""


def _event(event: SpanEvent) -> dict[str, object]:
    at_ns = otlp_time(event.time_unix_nano)
    return {
        "ts": format_rfc3339(at_ns) if at_ns else "",
        "time_unix_nano": str(event.time_unix_nano) if at_ns is None else "",
        "name": event.name,
        "attributes": json_map(event.attributes),
        "dropped_attributes_count": event.dropped_attributes_count,
    }


def _link(link: SpanLink) -> dict[str, object]:
    return {
        "trace_id": id_text(link.trace_id, TRACE_ID_BYTES),
        "span_id": id_text(link.span_id, SPAN_ID_BYTES),
        "trace_state": link.trace_state,
        "trace_flags": link.flags,
        "attributes": json_map(link.attributes),
        "dropped_attributes_count": link.dropped_attributes_count,
    }
