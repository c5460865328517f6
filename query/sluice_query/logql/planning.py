"""A question of LogQL as a query: what narrows the files to read, and what is computed.

Conditions that statistics and index chunks can decide about become parts of the request that the
search already knows. The pipeline decides about each record of what is left.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

from sluice_protocol.errors import BadUsage
from sluice_protocol.units import UnixNs
from sluice_query.logql.expressions import (
    Evaluation,
    Expression,
    LabelFilter,
    LineFilter,
    LineOperator,
    LogQuery,
    MatchOperator,
    MetricQuery,
    RangeAggregation,
    VectorAggregation,
)
from sluice_query.logql.grammar import parse_logql
from sluice_query.logql.names import ONLY_FIELDS, UNKNOWN_SERVICE, field_of
from sluice_query.logql.stages import line_column, patterns_of, split_conditions
from sluice_query.request import (
    ALTERNATIVES_MAX,
    END_NS,
    FILTERS_MAX,
    FIRST_NS,
    PATTERN_BYTES_MAX,
    FilterOperator,
    ParameterName,
    Query,
    RecordFilter,
    TextCondition,
    condition_of,
    plain_name,
)

if TYPE_CHECKING:
    from sluice_query.engine import QueryEngine

STEPS_MAX: Final = 11_000
"""Times at which a metric query is evaluated."""
_STEPS_DEFAULT: Final = 250
_S: Final = 1_000_000_000


def plan_query(
    text: str, query: Query, step_ns: int | None = None, name: ParameterName = plain_name
) -> Query:
    """Return a query with a question of LogQL, as `plan_question` does."""
    question = parse_logql(text)
    planned = plan_question(question, query, step_ns, name)
    is_of_lines = (
        isinstance(question, LogQuery)
        and not question.matchers
        and all(isinstance(one, LineFilter) for one in question.stages)
    )
    return replace(planned, logql=text, names_labels=not is_of_lines)


def plan_question(
    question: Expression,
    query: Query,
    step_ns: int | None = None,
    name: ParameterName = plain_name,
) -> Query:
    """Return a query with a question of LogQL.

    A metric query is evaluated at each multiple of `step_ns`, as by Loki, from the last one before
    the query's range begins; by default, at about 250 times. An empty range is one time.
    """
    if query.series is not None:
        return _plan_samples(query, question, name)
    if isinstance(question, LogQuery):
        if step_ns is not None:
            raise BadUsage(f"{name('step')} applies to a metric query only: omit it")
        return narrowed(query, question)
    if query.stats_only or query.highlight:
        used = "stats_only" if query.stats_only else "highlight"
        raise BadUsage(f"{name(used)} applies to records only: omit it, or write a log query")
    if step_ns is None:
        whole_s = -(-(query.to_ns - query.from_ns) // (_STEPS_DEFAULT * _S))
        step_ns = max(1, whole_s) * _S
    start_ns = query.from_ns
    if query.from_ns != query.to_ns:
        start_ns = UnixNs(query.from_ns // step_ns * step_ns)
    steps = (query.to_ns - start_ns) // step_ns + 1
    if steps > STEPS_MAX:
        raise BadUsage(
            f"{name('step')} is too short for the time range: at most {STEPS_MAX} steps,"
            f" steps=`{steps}`"
        )
    evaluation = Evaluation(start_ns=start_ns, end_ns=query.to_ns, step_ns=step_ns)
    return plan_metric(query, question, evaluation)


def _plan_samples(query: Query, question: Expression, name: ParameterName) -> Query:
    """Return the query for the samples of one metric that a selector has.

    The attributes of its `=` are known to rollups too. Of other labels the place is not certain.
    """
    if not isinstance(question, LogQuery) or question.stages:
        raise BadUsage(
            f'{name("query")} of a metric is a selector such as `{{path="/"}}`: omit the rest, or'
            f" omit {name('metric')}"
        )
    found = narrowed(query, question)
    pairs = [
        (one.name, one.value)
        for one in question.matchers
        if one.operator is MatchOperator.EQUAL and one.value
        if "_" not in one.name and field_of(one.name, query.kind) is None
    ]
    return replace(found, attributes=tuple(pairs))


def plan_metric(query: Query, question: MetricQuery, evaluation: Evaluation) -> Query:
    """Return the query that reads what a metric query needs."""
    parts = [leaf_query(query, one, evaluation) for one in ranges_of(question)]
    first = parts[0]
    # Times are 64-bit numbers, with one range added to the last.
    longest_ns = max(one.range_ns + abs(one.offset_ns) for one in ranges_of(question))
    if evaluation.start_ns - longest_ns < FIRST_NS or query.to_ns + longest_ns > END_NS:
        raise BadUsage("the ranges of the query must be between 1677 and 2262: choose other times")
    same = all(_rules_out(one) == _rules_out(first) for one in parts)
    return replace(
        query,
        from_ns=UnixNs(min(one.from_ns for one in parts)),
        to_ns=UnixNs(max(one.to_ns for one in parts)),
        filters=first.filters if same else query.filters,
        required=first.required if same else (),
        labels=first.labels if same else (),
        agents=first.agents if all(one.agents == first.agents for one in parts) else query.agents,
        metric=question,
        evaluation=evaluation,
    )


def _rules_out(query: Query) -> tuple[object, ...]:
    return query.filters, query.required, query.labels


def ranges_of(question: MetricQuery | Decimal) -> Iterable[RangeAggregation]:
    """Yield the range aggregations of a metric query."""
    if isinstance(question, RangeAggregation):
        yield question
    elif isinstance(question, VectorAggregation):
        yield from ranges_of(question.inner)
    elif not isinstance(question, Decimal):
        yield from ranges_of(question.left)
        yield from ranges_of(question.right)


def leaf_query(query: Query, one: RangeAggregation, evaluation: Evaluation) -> Query:
    """Return the query for the records of a range aggregation at all times of an evaluation."""
    last_ns = last_time(evaluation)
    records = replace(
        query,
        from_ns=UnixNs(evaluation.start_ns - one.offset_ns - one.range_ns + 1),
        to_ns=UnixNs(last_ns - one.offset_ns + 1),
        metric=None,
        evaluation=None,
    )
    return narrowed(records, one.query)


def last_time(evaluation: Evaluation) -> int:
    """Return the last time of an evaluation."""
    length_ns = evaluation.end_ns - evaluation.start_ns
    return evaluation.start_ns + length_ns // evaluation.step_ns * evaluation.step_ns


def narrowed(query: Query, question: LogQuery) -> Query:
    """Return a query for the records of a log query.

    `=` of a field becomes a filter, and each filter of lines the texts that a line must contain:
    statistics and index chunks rule out files by them.
    """
    kind = query.kind
    matchers, lines, _ = split_conditions(question)
    if lines or any(not isinstance(one, LabelFilter | LineFilter) for one in question.stages):
        line_column(kind)
    filters, labels, agents = [*query.filters], [*query.labels], query.agents
    known = {one.field for one in query.filters}
    equal = [one for one in matchers if one.operator is MatchOperator.EQUAL and one.value]
    labels += [(one.name, one.value) for one in equal if field_of(one.name, kind) is None]
    for one in equal:
        field = field_of(one.name, kind)
        # Several `=` of one filter are alternatives, so each field has one.
        if field is None or field.is_number or field in known or len(filters) == FILTERS_MAX:
            continue
        known.add(field)
        if field.column == "agent_id":
            agents = agents or (one.value,)
        elif one.value == UNKNOWN_SERVICE and field.column == "service":
            continue  # records without the field have it too
        elif field.column in ONLY_FIELDS or _is_id(field.column, one.value):
            filters.append(RecordFilter(field, FilterOperator.EQUAL, one.value))
    return replace(
        query,
        required=required_texts(lines),
        labels=tuple(labels),
        filters=tuple(filters),
        agents=agents,
        pipeline=question,
    )


def _is_id(column: str, value: str) -> bool:
    """Return whether only a field can have a value: an attribute with it becomes the field."""
    if column not in ("trace_id", "span_id"):
        return False
    from sluice_protocol.meaning import ID_BYTES_MAX, plain_id  # noqa: PLC0415 - large tables

    return len(value.encode()) <= ID_BYTES_MAX and plain_id(column, value) == value


def check_pipelines(engine: "QueryEngine", query: Query) -> None:
    """Check that RE2 accepts the patterns of a question."""
    pipelines: Sequence[LogQuery] = [query.pipeline] if query.pipeline is not None else []
    if query.metric is not None:
        pipelines = [one.query for one in ranges_of(query.metric)]
    for one in pipelines:
        for pattern in patterns_of(one):
            if len(pattern.encode()) > PATTERN_BYTES_MAX:
                raise BadUsage(f"pattern must be 1 to {PATTERN_BYTES_MAX} bytes")
            try:
                engine.check_pattern(pattern)
            except BadUsage as error:
                from sluice_query.logql.mistakes import refuse_pattern  # noqa: PLC0415 - for an error

                raise refuse_pattern(query.logql, pattern, error) from error


def required_texts(filters: Iterable[LineFilter]) -> tuple[TextCondition, ...]:
    """Return the conditions that every line meets which passes all filters.

    They are looked up in the index. What is not certain is left out, which only makes the search
    read more.
    """
    found = map(_of_filter, filters)
    return tuple(one for one in found if one is not None)


def _of_filter(one: LineFilter) -> TextCondition | None:
    match one.operator:
        case LineOperator.CONTAINS:
            found = [TextCondition(((text,) if text else (),)) for text in one.values]
        case LineOperator.MATCHES:
            found = [condition_of(pattern) for pattern in one.values]
        case LineOperator.PATTERN:
            parts = [text.split("<_>") for text in one.values]
            found = [TextCondition((tuple(filter(None, some)),)) for some in parts]
        case _:
            return None
    alternatives = tuple(dict.fromkeys(some for each in found for some in each.alternatives))
    if not all(alternatives) or len(alternatives) > ALTERNATIVES_MAX:
        return None
    return TextCondition(alternatives, any(each.ignore_case for each in found))
