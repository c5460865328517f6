"""The result of a query: records or points, and a summary of what was read for them."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sluice_protocol.fields import KINDS, Field, FieldType, Kind
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.values import json_attributes, labelled_value, types_not_in_json

Row = dict[str, object]
"""One record by column, between the engine and the rendering."""
HIGHLIGHTS: Final = "highlights"
"""The member of a record with the ranges that match the query's text."""
SUMMARY_KEY: Final = "sluice.summary"
"""The key of the summary, as JSON, in the metadata of an Arrow table or a Parquet file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySummary:
    """What was read, and whether it was everything.

    Attributes:
        results: Number of records or points returned; with stats-only, of records that match.
        more: Whether more records match than the limit allows to return.
        first_ts: Time of the first record that matches, RFC 3339; stats-only.
        last_ts: Time of the last record that matches, RFC 3339; stats-only.
        segments_read: Files of the lake that were read.
        rollup_segments_read: Those of them that contain rollups.
        segments_pruned: Files that their statistics or an index ruled out.
        bytes_read: Size of the files, index chunks and blobs that were read.
        waiting_batches: Pending batches that were read from their blobs.
        deletes_applied: Deletes that apply to the query.
        accepted_until: Every batch that was acknowledged before this time, by the store's clock, is
            in the answer if it matches, except those that `reasons` name; RFC 3339, None if no such
            time is known.
        complete_now: Whether nothing that was acknowledged before the query can be missing: no
            gateway is open, or everything accepted was listed.
        held_by: The gateway and process that hold that time back, if the answer is partial and one
            does.
        rollups_only_before: The points before this time are computed from rollups of whole minutes,
            because retention removed samples; RFC 3339, None if all samples remain.
        partial: Whether records of the answer may be missing.
        reasons: Why the result is partial.
        hints: Labels of the question that no record has, with their column and what to write.
        elapsed_ms: How long the query took.
    """

    results: int = 0
    more: bool = False
    first_ts: str | None = None
    last_ts: str | None = None
    segments_read: int = 0
    rollup_segments_read: int = 0
    segments_pruned: int = 0
    bytes_read: int = 0
    waiting_batches: int = 0
    deletes_applied: int = 0
    accepted_until: str | None = None
    complete_now: bool = False
    held_by: str | None = None
    rollups_only_before: str | None = None
    partial: bool = False
    reasons: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    elapsed_ms: int = 0

    @property
    def until_text(self) -> str:
        """Return the time through which the answer is complete, as text."""
        until = "now" if self.complete_now else self.accepted_until or "unknown"
        return f"accepted until {until}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesPoint:
    """One step of a series, or of one of its groups.

    Attributes:
        by: The values of the fields by which the series is divided.
        value: None when the step's numbers have none.
    """

    step_ns: int
    by: Mapping[str, str | float | None]
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelledSeries:
    """A series of a metric query: its labels, and its values by the times that have one."""

    labels: Mapping[str, str]
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchCount:
    """How many records of one source a delete hides, and of how many batches.

    Attributes:
        source: The table, or `pending` for batches that are not in the lake yet.
        batches: Number of batches with such records; None for rollups, which have none.
    """

    source: str
    records: int
    batches: int | None


class ViewResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was computed from records.

    Attributes:
        summary: What was read, and whether it was everything.
    """

    summary: QuerySummary = msgspec.field(default_factory=QuerySummary)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """The complete result of one query.

    `matches` counts what a delete hides; `position` is the cursor of a reconciler while following
    one.
    """

    kind: Kind
    summary: QuerySummary
    records: list[Row] = field(default_factory=list)
    points: list[SeriesPoint] = field(default_factory=list)
    series: list[LabelledSeries] = field(default_factory=list)
    matches: tuple[MatchCount, ...] = ()
    view: ViewResult | None = None
    position: str = ""


def result_lines(result: QueryResult) -> Iterator[bytes]:
    """Yield a result as NDJSON: records or points, then the summary as the last line.

    What was computed from records is one line, which contains the summary.
    """
    for row in result.records:
        yield msgspec.json.encode(record_json(result.kind, row)) + b"\n"
    if result.view is not None:
        yield msgspec.json.encode(result.view) + b"\n"
        return
    for point in result.points:
        yield msgspec.json.encode(point_json(point)) + b"\n"
    for one in result.series:
        yield msgspec.json.encode(labelled_json(one)) + b"\n"
    yield msgspec.json.encode({"summary": result.summary}) + b"\n"


def record_json(kind: Kind, row: Row) -> Row:
    """Return a record for JSON: as in the NDJSON of frames, with identity and resource added."""
    shown: Row = {"ts": _time(row["ts_ns"])} if row["ts_ns"] is not None else {}
    shown |= {name: row[name] for name in ("agent_id", "boot_id", "seq")}
    shown |= {
        one.name: _value_json(one, row[one.name])
        for one in KINDS[kind].read_fields
        if row.get(one.name) or not one.is_optional
    }
    for name in (HIGHLIGHTS, "line", "labels"):
        if name in row:
            shown[name] = row[name]
    # The maps that are not empty, each attribute with its type.
    attributes, labels = _map(row["attributes"]), _map(row.get("attribute_types"))
    for key, label in labels.items():
        if attributes.get(key) is not None:
            attributes[key] = labelled_value(attributes[key], label)
    maps: Row = {
        "attributes": json_attributes(attributes),
        "attribute_types": types_not_in_json(attributes) if labels else None,
        "resource": row["resource"],
    }
    return shown | {name: one for name, one in maps.items() if one}


def _map(value: object) -> dict[str, str]:
    return dict(value) if isinstance(value, Mapping) else {}


def _value_json(field: Field, value: object) -> object:
    if field.labels:
        return field.labels[int(str(value))]
    if field.type is FieldType.OPAQUE:
        return base64.b64encode(_bytes(value)).decode()
    return number_json(value)


def point_json(point: SeriesPoint) -> Row:
    """Return a point of a series for JSON."""
    shown: Row = {"ts": _time(point.step_ns), "value": number_json(point.value)}
    by = {name: number_json(value) for name, value in point.by.items()}
    return shown | ({"by": by} if by else {})


def labelled_json(series: LabelledSeries) -> Row:
    """Return a series of a metric query for JSON."""
    points = [{"ts": _time(at_ns), "value": number_json(value)} for at_ns, value in series.points]
    return {"labels": series.labels, "points": points}


def number_json(value: object) -> object:
    """Return a number for JSON, which has no NaN and infinities: they become strings."""
    if not isinstance(value, float) or math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _time(at_ns: object) -> str:
    return format_rfc3339(int(str(at_ns)))


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else bytes(str(value), "utf-8")
