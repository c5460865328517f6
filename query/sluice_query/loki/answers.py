"""Results in the form of Loki's answers.

Labels of a record are of three kinds, as clients of Loki know them. Those of its stream are the
fields of its sender (`STREAM_FIELDS`) and its resource; structured metadata are its other fields
and its attributes; parsed are the labels that stages of the query made. A client that wants
`categorize-labels` gets them apart, any other client gets all of them as the labels of a stream.
"""

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec

from sluice_protocol.errors import UNREADABLE_JSON
from sluice_protocol.fields import label_of
from sluice_protocol.units import NS_PER_S
from sluice_query.logql.names import FIELD_LABELS
from sluice_query.result import LabelledSeries, QuerySummary, Row
from sluice_query.views import FieldListResult, LinePatternsResult

STREAM_FIELDS: Final = ("service_name", "level", "host", "instance", "agent")
"""The fields of a record that are labels of its stream."""
METADATA_FIELDS: Final = ("trace_id", "span_id", "file", "request")
CATEGORIZED: Final = "categorize-labels"
"""The flag by which a client requests the kinds of labels, and the answer states that it has them.
"""
RESOURCE_LABELS_MAX: Final = 100
_FIELDS: Final = {column: name for name, column in FIELD_LABELS.items() if name != "detected_level"}
_MS_PER_S: Final = 1_000
_NS_PER_MS: Final = 1_000_000


def success(data: object, summaries: Iterable[QuerySummary] = ()) -> dict[str, object]:
    """Return an answer; `warnings` state why it may be incomplete."""
    answer: dict[str, object] = {"status": "success", "data": data}
    return answer | with_warnings(summaries)


def with_warnings(summaries: Iterable[QuerySummary]) -> dict[str, object]:
    """Return the member with the reasons why an answer may be incomplete; empty for a whole one."""
    found = []
    for one in summaries:
        found += [*one.reasons] if one.partial else []
        found += ["there is more than is listed: choose fewer labels or a shorter range"] * (
            one.more and one.results != 0
        )
    return {"warnings": list(dict.fromkeys(found))} if found else {}


# Records


def streams_json(rows: Sequence[Row], *, categorized: bool) -> list[dict[str, object]]:
    """Return records by their streams: the order of the records is that of each stream."""
    streams: dict[tuple[tuple[str, str], ...], list[list[object]]] = {}
    for row in rows:
        stream, metadata, parsed = labels_of(row)
        value: list[object] = [str(row["ts_ns"]), _line(row)]
        if categorized:
            kinds = {"structuredMetadata": metadata, "parsed": parsed}
            value.append({name: one for name, one in kinds.items() if one})
        else:
            stream = stream | metadata | parsed
        streams.setdefault(tuple(sorted(stream.items())), []).append(value)
    return [{"stream": dict(labels), "values": values} for labels, values in streams.items()]


def labels_of(row: Row) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """Return the labels of a record: of its stream, its metadata, and those of stages."""
    labels = _map(row.get("labels"))
    resource = {label_of(key) for key in _map(row.get("resource"))}
    attributes = {label_of(key) for key in _map(row.get("attributes"))}
    stream = {name: one for name, one in labels.items() if name in STREAM_FIELDS}
    metadata: dict[str, str] = {}
    parsed: dict[str, str] = {}
    for name, value in labels.items():
        if name in stream:
            continue
        if name in attributes or name in METADATA_FIELDS:
            metadata[name] = value
        elif name in resource:
            stream[name] = value
        else:
            parsed[name] = value
    return stream, metadata, parsed


def _line(row: Row) -> str:
    return str(row["line"] if row.get("line") is not None else row["body"])


def _map(value: object) -> dict[str, str]:
    return dict(value) if isinstance(value, Mapping) else {}


# Series


def go_number(value: float) -> str:
    """Return a number as Go prints it without an exponent."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    if value == int(value):
        return str(int(value))
    return format(Decimal(repr(value)), "f")


def seconds(at_ns: int) -> float | int:
    """Return a time in seconds, with ms."""
    at_ms = at_ns // _NS_PER_MS
    return at_ms // _MS_PER_S if at_ms % _MS_PER_S == 0 else at_ms / _MS_PER_S


def matrix_json(series: Sequence[LabelledSeries]) -> dict[str, object]:
    """Return series with the values of each time."""
    found = [
        {
            "metric": one.labels,
            "values": [[seconds(at_ns), go_number(value)] for at_ns, value in one.points],
        }
        for one in series
    ]
    return {"resultType": "matrix", "result": found}


def vector_json(series: Sequence[LabelledSeries]) -> dict[str, object]:
    """Return the value of each series at one time."""
    found = [
        {"metric": one.labels, "value": [seconds(at_ns), go_number(value)]}
        for one in series
        for at_ns, value in one.points[-1:]
    ]
    return {"resultType": "vector", "result": found}


def by_size(series: Sequence[LabelledSeries], limit: int) -> list[LabelledSeries]:
    """Return the series with the largest sums, the largest first."""
    sums = {id(one): sum(value for _, value in one.points) for one in series}
    return sorted(series, key=lambda one: (-sums[id(one)], sorted(one.labels.items())))[:limit]


# Labels and fields


def stream_labels(listed: FieldListResult) -> dict[str, int]:
    """Return the labels that streams of the records have, each with the number of its values."""
    found: dict[str, int] = {}
    resource: dict[str, int] = {}
    without_service = listed.records
    for one in listed.fields:
        name = _FIELDS.get(one.label or "", one.label or "")
        if name in STREAM_FIELDS:
            found[name] = one.distinct or 0
            without_service -= one.count if name == "service_name" else 0
        elif one.field.startswith("resource.") and name:
            resource[name] = one.distinct or 0
    if without_service:  # these are of `UNKNOWN_SERVICE`
        found["service_name"] = found.get("service_name", 0) + 1
    return found | dict(itertools.islice(resource.items(), RESOURCE_LABELS_MAX))


def detected_labels_json(labels: Mapping[str, int]) -> list[dict[str, object]]:
    """Return labels with the number of their values."""
    return [{"label": name, "cardinality": count} for name, count in labels.items()]


_LOGFMT: Final = re.compile(r'([A-Za-z_][\w.\-/]*)=("(?:[^"\\]|\\.)*"|[^\s"]*)')
_NUMBER_TYPES: Final = (
    ("int", re.compile(r"[+-]?[0-9]{1,19}")),
    ("float", re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.?[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")),
    ("boolean", re.compile("true|false")),
    ("duration", re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")),
    ("bytes", re.compile(r"[0-9]+(?:\.[0-9]+)? ?(?:[kKMGTP]i?)?B")),
)
_MEMBERS_MAX: Final = 200
_DEPTH_MAX: Final = 8
_LINE_CHARS_MAX: Final = 65_536


class DetectedField:
    """What a sample of records has under one name."""

    def __init__(self) -> None:
        self.values: Counter[str] = Counter()
        self.types: Counter[str] = Counter()
        self.parsers: set[str] = set()
        self.path: tuple[str, ...] = ()

    def add(self, value: str, parser: str, path: tuple[str, ...] = (), kind: str = "") -> None:
        """Count one value; `parser` is empty for an attribute."""
        self.values[value] += 1
        self.types[kind or _type_of(value)] += 1
        self.parsers |= {parser} - {""}
        self.path = self.path or path

    def describe(self, name: str) -> dict[str, object]:
        """Return the field as Loki lists it."""
        kind = next(iter(self.types)) if len(self.types) == 1 else "string"
        if set(self.types) == {"int", "float"}:
            kind = "float"
        shown: dict[str, object] = {
            "label": name,
            "type": kind,
            "cardinality": len(self.values),
            "parsers": sorted(self.parsers) or None,
        }
        return shown | ({"jsonPath": list(self.path)} if self.path else {})


def detected_fields(rows: Sequence[Row]) -> dict[str, DetectedField]:
    """Return the fields of records: attributes, and what `json` and `logfmt` would find."""
    found: defaultdict[str, DetectedField] = defaultdict(DetectedField)
    for row in rows:
        if level := _map(row.get("labels")).get("level"):
            found["detected_level"].add(level, "", kind="string")
        own = {label_of(key): value for key, value in _map(row.get("attributes")).items()}
        own |= {name: str(row[name]) for name in METADATA_FIELDS if row.get(name)}
        for name, value in own.items():
            if name not in STREAM_FIELDS:
                found[name].add(value, "")
        line = _line(row)
        members = list(itertools.islice(_json_members(line), _MEMBERS_MAX))
        for path, value in members or itertools.islice(_logfmt_pairs(line), _MEMBERS_MAX):
            name = label_of("_".join(path))
            shown = f"{name}_extracted" if name in own or name in STREAM_FIELDS else name
            found[shown].add(value, "json" if members else "logfmt", path if members else ())
    return found


def _json_members(line: str) -> Iterable[tuple[tuple[str, ...], str]]:
    if not line.lstrip().startswith("{"):
        return
    try:
        decoded = msgspec.json.decode(line)
    except UNREADABLE_JSON:
        return
    yield from _flattened((), decoded)


def _flattened(path: tuple[str, ...], value: Any) -> Iterable[tuple[tuple[str, ...], str]]:  # noqa: ANN401 - any JSON
    if isinstance(value, dict) and len(path) < _DEPTH_MAX:
        for key, member in value.items():
            yield from _flattened((*path, key), member)
    elif isinstance(value, bool):
        yield path, str(value).lower()
    elif isinstance(value, str | int | float):
        yield path, str(value)


def _logfmt_pairs(line: str) -> Iterable[tuple[tuple[str, ...], str]]:
    for found in _LOGFMT.finditer(line[:_LINE_CHARS_MAX]):
        yield (found[1],), found[2].strip('"')


def _type_of(value: str) -> str:
    return next((name for name, form in _NUMBER_TYPES if form.fullmatch(value)), "string")


def patterns_json(found: LinePatternsResult) -> list[dict[str, object]]:
    """Return the forms of lines, each with its number of lines in the steps that have some."""
    return [
        {
            "pattern": one.pattern,
            "samples": [[at_ns // NS_PER_S, count] for at_ns, count in one.counts],
        }
        for one in found.patterns
    ]
