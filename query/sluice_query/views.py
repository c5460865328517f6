"""Views that are computed from records: histogram, fields, values, neighbours, operations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from sluice_protocol.fields import KINDS, Kind
from sluice_protocol.timestamps import format_rfc3339
from sluice_query.engine import QueryEngine
from sluice_query.pruning import newest_files
from sluice_query.request import (
    COLUMN_FIELDS,
    MAPS,
    METRICS_MAX,
    NS_PER_MS,
    FieldList,
    Histogram,
    LinePatterns,
    MetricList,
    Neighbourhood,
    Operations,
    Query,
    RecordField,
    TopValues,
    View,
    bucket_starts,
)
from sluice_query.result import ViewResult, number_json, record_json
from sluice_query.statements import (
    SERIES_LABELS,
    RecordSources,
    SqlStatement,
    field_sql,
    record_time,
    returned_columns,
    select_sql,
)

if TYPE_CHECKING:
    from sluice_query.search import Evaluator

VALUE_CHARS_MAX: Final = 1_000
"""Longer values are cut."""

_SAME_VALUE: Final = "counted.found IS NOT DISTINCT FROM ranked.found"


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


def histogram_sql(query: Query, histogram: Histogram, sources: RecordSources) -> SqlStatement:
    """Return the statement for the counts.

    Its rows are the number of the bucket, a value, the rank of the value or None for all others,
    and the count.
    """
    at, step = record_time(query.kind), int(histogram.step_ns)
    bucket = f"({at} // {step})"
    if query.from_ns < 0:
        # `//` truncates in DuckDB, so the remainder of a time before 1970 needs its own term. It
        # doubles the time of a count, so other ranges do without.
        bucket = f"({at} // {step} - ({at} % {step} < 0)::INT)"
    if histogram.by is None:
        inner = select_sql(query, SqlStatement(f"{bucket} AS bucket"), sources)
        text = f"SELECT bucket, NULL, NULL, count(*) FROM ({inner.text}) GROUP BY bucket"  # noqa: S608 - constants
        return SqlStatement(text, inner.values)
    inner = select_sql(query, SqlStatement(f"{bucket} AS bucket"), sources, histogram.by)
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
    return HistogramResult(step_ms=step_ns // NS_PER_MS, buckets=tuple(buckets), split=split)


def shown_value(value: object) -> str | float | int | None:
    """Return a value of a field for JSON, cut where it is very long."""
    if isinstance(value, str):
        return value[:VALUE_CHARS_MAX]
    shown: Any = number_json(value)
    number: str | float | int | None = shown
    return number


_UNREAD: Final = "body"
"""Every log has a body; reading all of them only to count would be slow."""


class FieldCount(msgspec.Struct, frozen=True, kw_only=True):
    """One field.

    Attributes:
        field: Its name.
        label: The label of LogQL that reads it; null if none does, or if another field precedes it.
        count: The number of records that have it.
        distinct: An estimate of the number of its values; null for the body, which is not read.
    """

    field: str
    label: str | None
    count: int
    distinct: int | None


class FieldListResult(ViewResult, frozen=True, kw_only=True):
    """The fields of records.

    Attributes:
        fields: The columns, then the keys by their count.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
        more: Whether there are more keys than are listed.
    """

    fields: tuple[FieldCount, ...] = ()
    records: int = 0
    sampled: bool = False
    more: bool = False


class ValueCount(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a field.

    Attributes:
        count: The number of records that have it.
        cut: Whether the value is longer than it is shown.
    """

    value: str | float | int | None
    count: int
    cut: bool = False


class TopValuesResult(ViewResult, frozen=True, kw_only=True):
    """The most frequent values of a field.

    Attributes:
        values: The values, the most frequent first.
        missing: The number of records without the field.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
    """

    field: str
    values: tuple[ValueCount, ...] = ()
    distinct: int = 0
    missing: int = 0
    records: int = 0
    sampled: bool = False


def values_sql(
    query: Query, top: TopValues, sources: RecordSources, *, records_max: int
) -> SqlStatement:
    """Return the statement for the values of a field.

    Its rows are a value, its count, the number of values, of records without one, and of all
    records. The value None is last. One record over the limit shows whether there are more.
    """
    inner = select_sql(query, SqlStatement(""), sources, top.field)
    text = (
        f"WITH counted AS (SELECT found, count(*) AS n FROM ({inner.text} LIMIT ?) GROUP BY found)"  # noqa: S608 - constants
        " SELECT found, n, count(found) OVER (),"
        " coalesce(sum(n) FILTER (found IS NULL) OVER (), 0)::BIGINT, (sum(n) OVER ())::BIGINT"
        " FROM counted ORDER BY found IS NULL, n DESC, found LIMIT ?"
    )
    return SqlStatement(text, (*inner.values, records_max + 1, top.limit))


def make_values(
    top: TopValues, rows: Sequence[tuple[Any, ...]], *, records_max: int
) -> TopValuesResult:
    """Return the result of the rows of `values_sql`."""
    if not rows:
        return TopValuesResult(field=top.field.name)
    _, _, distinct, missing, records = rows[0]
    values = tuple(
        ValueCount(
            value=shown_value(found),
            count=count,
            cut=isinstance(found, str) and len(found) > VALUE_CHARS_MAX,
        )
        for found, count, *_ in rows
        if found is not None
    )
    return TopValuesResult(
        field=top.field.name,
        values=values,
        distinct=distinct,
        missing=missing,
        records=records,
        sampled=records > records_max,
    )


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a service.

    Attributes:
        name: The name of its spans.
        service: Null for spans without one.
        errors: Its spans with the status `error`.
        duration_p50_ns: An estimate of the median; `duration_p95_ns` likewise.
    """

    service: str | None
    name: str
    spans: int
    errors: int
    duration_p50_ns: int
    duration_p95_ns: int
    duration_max_ns: int


class OperationsResult(ViewResult, frozen=True, kw_only=True):
    """The operations of services.

    Attributes:
        operations: The most frequent first.
        more: Whether there are more than are listed.
    """

    operations: tuple[Operation, ...] = ()
    more: bool = False


_ERROR: Final = 2


def operations_sql(query: Query, view: Operations, sources: RecordSources) -> SqlStatement:
    """Return the statement for the operations, at most one more than wanted."""
    inner = select_sql(query, SqlStatement("service, name, status, duration_ns"), sources)
    return SqlStatement(
        f"SELECT left(service, {VALUE_CHARS_MAX}), left(name, {VALUE_CHARS_MAX}), count(*) AS n,"  # noqa: S608 - constants
        f" count(*) FILTER (status = {_ERROR}), approx_quantile(duration_ns, [0.5, 0.95]),"
        " max(duration_ns)"
        f" FROM ({inner.text}) GROUP BY service, name ORDER BY n DESC, service, name LIMIT ?",
        (*inner.values, view.limit + 1),
    )


def make_operations(view: Operations, rows: Sequence[tuple[Any, ...]]) -> OperationsResult:
    """Return the result of the rows of `operations_sql`."""
    listed = tuple(
        Operation(
            service=service,
            name=name,
            spans=spans,
            errors=errors,
            duration_p50_ns=p50_ns,
            duration_p95_ns=p95_ns,
            duration_max_ns=longest_ns,
        )
        for service, name, spans, errors, (p50_ns, p95_ns), longest_ns in rows
    )
    return OperationsResult(operations=listed[: view.limit], more=len(listed) > view.limit)


def fields_sql(
    query: Query, wanted: FieldList, sources: RecordSources, *, records_max: int
) -> SqlStatement:
    """Return the statement for the fields.

    Its rows are a column, a key or None, the number of records with the field, and the estimated
    number of values. The row without a column has the number of all records.
    """
    columns = [RecordField(name) for name in COLUMN_FIELDS[query.kind] if name != _UNREAD]
    shown = [f"{field_sql(one).text} AS {one.column}_found" for one in columns]
    inner = select_sql(query, SqlStatement(", ".join([*shown, *MAPS])), sources)
    parts = ["SELECT NULL AS col, NULL AS key, count(*) AS n, 0 AS d FROM found"]
    parts += [
        f"SELECT '{one.column}', NULL, count({one.column}_found),"  # noqa: S608 - constants
        f" approx_count_distinct({one.column}_found) FROM found"
        for one in columns
    ]
    parts += [
        f"(SELECT '{one}', pair.key, count(*) AS n, approx_count_distinct(pair.value)"  # noqa: S608 - constants
        f" FROM (SELECT unnest(map_entries({one})) AS pair FROM found)"
        " GROUP BY pair.key ORDER BY n DESC, pair.key LIMIT ?)"
        for one in MAPS
    ]
    text = f"WITH found AS MATERIALIZED ({inner.text} LIMIT ?) {' UNION ALL '.join(parts)}"
    limits = (wanted.keys_max + 1,) * len(MAPS)
    return SqlStatement(text, (*inner.values, records_max + 1, *limits))


def make_fields(
    query: Query, wanted: FieldList, rows: Sequence[tuple[Any, ...]], *, records_max: int
) -> FieldListResult:
    """Return the result of the rows of `fields_sql`."""
    records = next((count for column, _, count, _ in rows if column is None), 0)
    found: dict[tuple[str, str | None], tuple[int, int | None]]
    found = {(column, key): (count, distinct) for column, key, count, distinct in rows}
    found[_UNREAD, None] = (records, None)
    columns = [
        (RecordField(name), *found[name, None])
        for name in COLUMN_FIELDS[query.kind]
        if found.get((name, None), (0, 0))[0]
    ]
    keys = [
        (RecordField(column, key), count, distinct)
        for column, key, count, distinct in rows
        if key is not None
    ]
    keys.sort(key=lambda one: (-one[1], one[0].name))
    listed = (*columns, *keys[: wanted.keys_max])
    labels = _labels_of([field for field, _, _ in listed], query.kind)
    return FieldListResult(
        fields=tuple(
            FieldCount(field=field.name, label=labels.get(field), count=count, distinct=distinct)
            for field, count, distinct in listed
        ),
        records=records,
        sampled=records > records_max,
        more=len(keys) > wanted.keys_max,
    )


def _labels_of(fields: Sequence[RecordField], kind: Kind) -> dict[RecordField, str]:
    """Return the label of each field that precedes the others with this label."""
    from sluice_query.logql.names import label_of_field  # noqa: PLC0415 - only for a list of fields

    def precedence(field: RecordField) -> tuple[int, bool]:
        place = -1 if field.key is None else MAPS.index(field.column)
        return place, label_of_field(field, kind) != field.key

    labels: dict[str, RecordField] = {}
    for field in sorted(fields, key=precedence):
        label = label_of_field(field, kind)
        if label is not None:
            labels.setdefault(label, field)
    return {field: label for label, field in labels.items()}


class ListedMetric(msgspec.Struct, frozen=True, kw_only=True):
    """One metric.

    Attributes:
        type: `counter`, `delta` for a counter whose samples are increases, or `gauge`.
        unit: As its sender states it; empty if it does not in the time range.
        description: Likewise.
        series: An estimate of the number of its label sets.
    """

    name: str
    type: str
    unit: str = ""
    description: str = ""
    series: int
    samples: int


class MetricListResult(ViewResult, frozen=True, kw_only=True):
    """The metrics of a time range.

    Attributes:
        metrics: By name, without the points that only describe others.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
        more: Whether there are more names than are listed.
    """

    metrics: tuple[ListedMetric, ...] = ()
    records: int = 0
    sampled: bool = False
    more: bool = False


_TYPES: Final = ("gauge", "delta", "counter")
_DESCRIBED: Final = ("type", "unit", "description")
_PARTS: Final = ("", "_total", "_count", "_sum", "_bucket")
"""Endings of the names of a metric's series."""
_NAMES_MAX: Final = 4 * METRICS_MAX
"""Names that are read, with those that describe others."""


def metrics_sql(query: Query, sources: RecordSources, *, records_max: int) -> SqlStatement:
    """Return the statement for the metrics by name.

    Its rows are a name, its type, what it states about another, the estimated number of its
    series, and of its samples.
    """
    label = ", ".join(f"{text} AS label{place}" for place, text in enumerate(SERIES_LABELS))
    same = ", ".join(f"label{place}" for place in range(len(SERIES_LABELS)))
    stated = ", ".join(f"any_value(attributes['{key}'])" for key in _DESCRIBED)
    inner = select_sql(query, SqlStatement(f"name, type, attributes, {label}"), sources)
    return SqlStatement(
        f"SELECT name, max(type), {stated}, approx_count_distinct(({same})), count(*)"  # noqa: S608 - constants
        f" FROM ({inner.text} LIMIT ?) GROUP BY name ORDER BY name LIMIT {_NAMES_MAX}",
        (*inner.values, records_max + 1),
    )


def make_metrics(
    wanted: MetricList, rows: Sequence[tuple[Any, ...]], *, records_max: int
) -> MetricListResult:
    """Return the result of the rows of `metrics_sql`.

    `x_metadata` states type, unit and description of `x`, and `x_created` when its series began.
    """
    names = {row[0] for row in rows}
    stated: dict[str, tuple[str | None, ...]] = {}
    for name, _, *texts, _, _ in rows:
        if name.endswith("_metadata") and texts[0] is not None:
            stated[name.removesuffix("_metadata")] = tuple(texts)
    created = {f"{name.removesuffix(end)}_created" for name in names for end in _PARTS}
    metrics = []
    for name, kind, *_, series, samples in rows:
        if name.removesuffix("_metadata") in stated and name.endswith("_metadata"):
            continue
        if name in created and name.endswith("_created"):
            continue
        bases = (name.removesuffix(end) for end in _PARTS if name.endswith(end))
        _, unit, about = next((stated[one] for one in bases if one in stated), (None,) * 3)
        metrics.append(
            ListedMetric(
                name=name,
                type=_TYPES[kind],
                unit=unit or "",
                description=(about or "")[:VALUE_CHARS_MAX],
                series=series,
                samples=samples,
            )
        )
    records = sum(row[-1] for row in rows)
    return MetricListResult(
        metrics=tuple(metrics[: wanted.limit]),
        records=records,
        sampled=records > records_max,
        more=len(metrics) > wanted.limit,
    )


class LinePattern(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of one form.

    Attributes:
        pattern: Their text with `<_>` for each word that has a digit, as the line filter `|>` reads
            it.
        counts: The starts of steps that have such lines, Unix ns, and their numbers.
    """

    pattern: str
    counts: tuple[tuple[int, int], ...]


class LinePatternsResult(ViewResult, frozen=True, kw_only=True):
    """The forms of lines.

    Attributes:
        patterns: The most frequent first.
        records: The number of records that were counted.
        sampled: Whether more records match than were counted.
    """

    patterns: tuple[LinePattern, ...] = ()
    records: int = 0
    sampled: bool = False


_PATTERN_CHARS_MAX: Final = 500
_VARYING: Final = r"[^\s=:,;()\[\]{}<>|\"\'/?&]*[0-9][^\s=,;()\[\]{}<>|\"\'/?&]*"
"""A word, or a part of a path or of a pair, that has a digit."""


def patterns_sql(
    query: Query, view: LinePatterns, sources: RecordSources, *, records_max: int
) -> SqlStatement:
    """Return the statement for the forms of lines.

    Its rows are a form, the start of a step, the number of lines of both, and of all records.
    """
    at, step = record_time(query.kind), int(view.step_ns)
    line = KINDS[query.kind].searched
    inner = select_sql(query, SqlStatement(f"{line} AS line, {at} AS at_ns"), sources)
    form = f"regexp_replace(left(line, {2 * _PATTERN_CHARS_MAX}), ?, '<_>', 'g')"
    start = f"at_ns - (at_ns % {step} + {step}) % {step}"
    return SqlStatement(
        f"WITH found AS MATERIALIZED (SELECT left({form}, {_PATTERN_CHARS_MAX}) AS form,"  # noqa: S608 - constants
        f" {start} AS start, count(*) AS n FROM ({inner.text} LIMIT ?) GROUP BY form, start),"
        " ranked AS (SELECT form, sum(n) AS total FROM found GROUP BY form"
        " ORDER BY total DESC, form LIMIT ?)"
        " SELECT form, start, n, (SELECT sum(n) FROM found)::BIGINT"
        " FROM found JOIN ranked USING (form) ORDER BY total DESC, form, start",
        (_VARYING, *inner.values, records_max + 1, view.limit),
    )


def make_patterns(rows: Sequence[tuple[Any, ...]], *, records_max: int) -> LinePatternsResult:
    """Return the result of the rows of `patterns_sql`."""
    counts: dict[str, list[tuple[int, int]]] = {}
    for form, start_ns, count, _ in rows:
        counts.setdefault(form, []).append((start_ns, count))
    records = rows[0][-1] if rows else 0
    return LinePatternsResult(
        patterns=tuple(
            LinePattern(pattern=form, counts=tuple(found)) for form, found in counts.items()
        ),
        records=records,
        sampled=records > records_max,
    )


_WINDOW_FIRST: Final = 1_000
_WINDOW_GROWTH: Final = 32
_SEQ_MAX: Final = (1 << 63) - 1

_Row = tuple[object, ...]


class NeighboursResult(ViewResult, frozen=True, kw_only=True):
    """The records before and after one record, in the order of their sequence numbers.

    Attributes:
        record: The record, or null if the query does not find it.
        more_before: Whether there are earlier records.
        more_after: Whether there are later records.
    """

    before: tuple[dict[str, Any], ...] = ()
    record: dict[str, Any] | None = None
    after: tuple[dict[str, Any], ...] = ()
    more_before: bool = False
    more_after: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceWindow:
    """A range of sequence numbers, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSources:
    """The sources of a window's records, and whether other files may have records around it."""

    sources: RecordSources
    earlier_left: bool
    later_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNeighbours:
    """A record and its neighbours; a side has one row more than wanted if there are more."""

    before: list[_Row]
    record: _Row | None
    after: list[_Row]


def windows(around: Neighbourhood) -> Iterator[SequenceWindow]:
    """Yield growing ranges of sequence numbers around a record; the last contains all numbers."""
    reach = _WINDOW_FIRST + 2 * max(around.before, around.after)
    while reach < _SEQ_MAX:
        first, last = max(around.seq - reach, 0), min(around.seq + reach, _SEQ_MAX)
        yield SequenceWindow(first=first, last=last)
        reach *= _WINDOW_GROWTH
    yield SequenceWindow(first=0, last=_SEQ_MAX)


def neighbours_sql(
    query: Query, sources: RecordSources, window: SequenceWindow, *, descending: bool, limit: int
) -> SqlStatement:
    """Return the statement for a query's records of a window, in the order of their sequence."""
    columns = ", ".join(returned_columns(query.kind))
    inner = select_sql(query, SqlStatement(columns), sources)
    order = "DESC" if descending else "ASC"
    return SqlStatement(
        f"SELECT {columns} FROM ({inner.text}) WHERE seq BETWEEN ? AND ?"  # noqa: S608 - constants
        f" ORDER BY seq {order} LIMIT ?",
        (*inner.values, window.first, window.last, limit),
    )


def find_neighbours(
    engine: QueryEngine,
    query: Query,
    around: Neighbourhood,
    open_sources: Callable[[SequenceWindow], "WindowSources"],
) -> FoundNeighbours:
    """Return a record and its neighbours, reading as few files as possible.

    `open_sources` registers the files that may contain records of a window.
    """
    found = FoundNeighbours(before=[], record=None, after=[])
    for window in windows(around):
        opened = open_sources(window)
        if opened.sources.names:
            found = _read(engine, query, around, window, opened)
        before_known = not opened.earlier_left or len(found.before) > around.before
        if before_known and (not opened.later_left or len(found.after) > around.after):
            break
    return found


def _read(
    engine: QueryEngine,
    query: Query,
    around: Neighbourhood,
    window: SequenceWindow,
    opened: WindowSources,
) -> FoundNeighbours:
    # Beyond the window, records of files that are not open may be closer.
    first = window.first if opened.earlier_left else 0
    last = window.last if opened.later_left else _SEQ_MAX
    up_to = SequenceWindow(first=first, last=around.seq)
    later = SequenceWindow(first=around.seq + 1, last=last)
    sources = opened.sources
    limit = around.before + 2  # the record, its neighbours, and one more
    rows = engine.rows(neighbours_sql(query, sources, up_to, descending=True, limit=limit))
    place = returned_columns(query.kind).index("seq")
    record = rows.pop(0) if rows and rows[0][place] == around.seq else None
    limit = around.after + 1
    after = engine.rows(neighbours_sql(query, sources, later, descending=False, limit=limit))
    return FoundNeighbours(before=rows[: around.before + 1][::-1], record=record, after=list(after))


def compute_view(  # noqa: C901, PLR0911 - a case for each view
    evaluator: "Evaluator", view: View
) -> tuple[ViewResult, int]:
    """Return a view, without a summary, and how many records it has."""
    query, most = evaluator.query, evaluator.records_max
    if isinstance(view, Neighbourhood):
        return _neighbours(evaluator, view)
    sources = evaluator.sources(newest_files(evaluator.read.files.read), pending_first=True)

    def rows(statement: SqlStatement) -> list[tuple[Any, ...]]:
        return evaluator.engine.rows(statement) if sources.names else []

    match view:
        case Histogram():
            histogram = make_histogram(query, view, rows(histogram_sql(query, view, sources)))
            return histogram, sum(one.count for one in histogram.buckets)
        case FieldList():
            most = min(view.records_max or most, most)
            found = rows(fields_sql(query, view, sources, records_max=most))
            fields = make_fields(query, view, found, records_max=most)
            return fields, fields.records
        case TopValues():
            found = rows(values_sql(query, view, sources, records_max=most))
            values = make_values(view, found, records_max=most)
            return values, values.records
        case Operations():
            operations = make_operations(view, rows(operations_sql(query, view, sources)))
            return operations, sum(one.spans for one in operations.operations)
        case MetricList():
            metrics = make_metrics(
                view, rows(metrics_sql(query, sources, records_max=most)), records_max=most
            )
            return metrics, len(metrics.metrics)
        case LinePatterns():
            found = rows(patterns_sql(query, view, sources, records_max=most))
            patterns = make_patterns(found, records_max=most)
            return patterns, patterns.records


def _neighbours(evaluator: "Evaluator", around: Neighbourhood) -> tuple[ViewResult, int]:
    query = evaluator.query

    def open_sources(window: SequenceWindow) -> WindowSources:
        return _window_sources(evaluator, window)

    found = find_neighbours(evaluator.engine, query, around, open_sources)
    before = evaluator.rows(found.before[-around.before :] if around.before else [])
    records = [] if found.record is None else evaluator.rows([found.record])
    after = evaluator.rows(found.after[: around.after])
    result = NeighboursResult(
        before=tuple(record_json(query.kind, row) for row in before),
        record=record_json(query.kind, records[0]) if records else None,
        after=tuple(record_json(query.kind, row) for row in after),
        more_before=len(found.before) > around.before,
        more_after=len(found.after) > around.after,
    )
    return result, len(before) + len(records) + len(after)


def _window_sources(evaluator: "Evaluator", window: SequenceWindow) -> WindowSources:
    files, earlier, later = [], False, False
    for file in evaluator.read.files.read:
        first, last = file.record_seqs or (window.first, window.last)
        if last < window.first:
            earlier = True
        elif first > window.last:
            later = True
        else:
            files.append(file)
    sources = evaluator.sources(tuple(files))
    return WindowSources(sources=sources, earlier_left=earlier, later_left=later)
