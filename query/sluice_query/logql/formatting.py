"""The canonical text of a LogQL question: `format_logql` is the inverse of `parse_logql`."""

from collections.abc import Iterable
from decimal import Decimal
from typing import Final, assert_never

from sluice_protocol.units import NS_PER_S
from sluice_query.logql.expressions import (
    BinaryOperation,
    BinaryOperator,
    Both,
    Comparison,
    Conversion,
    Drop,
    Either,
    Expression,
    Extraction,
    Grouping,
    JsonParser,
    Keep,
    LabelCondition,
    LabelFilter,
    LabelFormat,
    LabelRename,
    LabelTemplate,
    LineFilter,
    LineFormat,
    Literal,
    LogfmtParser,
    LogQuery,
    Matcher,
    MetricQuery,
    PatternParser,
    RangeAggregation,
    RegexpParser,
    Stage,
    Template,
    Unit,
    Unwrap,
    VectorAggregation,
)
from sluice_query.logql.grammar import PRECEDENCE
from sluice_query.logql.lexer import DURATION_S, EXACT, SIZE_BYTES, quote
from sluice_query.logql.mistakes import STAGE_WORDS

_UNITS_SHOWN: Final = ("d", "h", "m", "s", "ms", "us", "ns")
_DIGITS_MAX: Final = 40
"""Longer numbers are written with an exponent."""


def format_logql(expression: Expression) -> str:
    """Return the text of a question that the parser returned."""
    if isinstance(expression, LogQuery):
        return _query(expression)
    return _metric(expression)


def _query(query: LogQuery) -> str:
    matchers = ", ".join(_matcher(one) for one in query.matchers)
    return " ".join((f"{{{matchers}}}", *(_stage(one) for one in query.stages)))


def _matcher(matcher: Matcher) -> str:
    return f"{matcher.name}{matcher.operator}{quote(matcher.value)}"


def _metric(query: MetricQuery | Decimal) -> str:
    match query:
        case Decimal():
            return _number(query)
        case RangeAggregation():
            return _range(query)
        case VectorAggregation():
            grouping = f" {_grouping(query.grouping)} " if query.grouping else ""
            parameter = "" if query.parameter is None else f"{query.parameter}, "
            return f"{query.operator}{grouping}({parameter}{_metric(query.inner)})"
        case BinaryOperation():
            own, is_power = PRECEDENCE[query.operator], query.operator is BinaryOperator.POWER
            left = _side(query.left, own + is_power)
            if is_power and left.startswith("-"):
                left = f"({left})"
            return f"{left} {query.operator} {_side(query.right, own + (not is_power))}"
        case _:
            assert_never(query)


def _side(query: MetricQuery | Decimal, precedence: int) -> str:
    """Return one side of an operator, in parentheses if it binds less than the precedence."""
    is_weaker = isinstance(query, BinaryOperation) and PRECEDENCE[query.operator] < precedence
    return f"({_metric(query)})" if is_weaker else _metric(query)


def _range(query: RangeAggregation) -> str:
    parameter = "" if query.parameter is None else f"{_number(query.parameter)}, "
    unwrap = f" {_unwrap(query.unwrap)}" if query.unwrap else ""
    offset = f" offset {_duration(query.offset_ns)}" if query.offset_ns else ""
    interval = f"[{_duration(query.range_ns)}]{offset}"
    grouping = f" {_grouping(query.grouping)}" if query.grouping else ""
    return f"{query.operator}({parameter}{_query(query.query)}{unwrap} {interval}){grouping}"


def _grouping(grouping: Grouping) -> str:
    return f"{'without' if grouping.is_without else 'by'} ({', '.join(grouping.names)})"


def _unwrap(unwrap: Unwrap) -> str:
    is_number = unwrap.conversion is Conversion.NUMBER
    name = unwrap.name if is_number else f"{unwrap.conversion}({unwrap.name})"
    conditions = (f" | {_first(_condition(one))}" for one in unwrap.conditions)
    return f"| unwrap {name}{''.join(conditions)}"


def _stage(stage: Stage) -> str:  # noqa: C901, PLR0911 - a case for each form
    match stage:
        case LineFilter():
            return f"{stage.operator} {' or '.join(quote(one) for one in stage.values)}"
        case JsonParser():
            return f"| json{_extractions(stage.extractions)}"
        case LogfmtParser():
            flags = " --strict" * stage.is_strict + " --keep-empty" * stage.keeps_empty
            return f"| logfmt{flags}{_extractions(stage.extractions)}"
        case PatternParser():
            return f"| pattern {quote(stage.pattern)}"
        case RegexpParser():
            return f"| regexp {quote(stage.pattern)}"
        case LabelFilter():
            return f"| {_first(_condition(stage.condition))}"
        case Drop():
            return f"| drop {_labels(stage.names, stage.matchers)}"
        case Keep():
            return f"| keep {_labels(stage.names, stage.matchers)}"
        case LineFormat():
            return f"| line_format {quote(_template(stage.template))}"
        case LabelFormat():
            return f"| label_format {', '.join(_change(one) for one in stage.changes)}"
        case _:
            assert_never(stage)


def _extractions(extractions: Iterable[Extraction]) -> str:
    pairs = ", ".join(f"{one.label}={quote(one.path)}" for one in extractions)
    return f" {pairs}" if pairs else ""


def _labels(names: tuple[str, ...], matchers: tuple[Matcher, ...]) -> str:
    return ", ".join((*names, *(_matcher(one) for one in matchers)))


def _change(change: LabelRename | LabelTemplate) -> str:
    if isinstance(change, LabelRename):
        return f"{change.target}={change.source}"
    return f"{change.target}={quote(_template(change.template))}"


def _template(template: Template) -> str:
    return "".join(
        part.text
        if isinstance(part, Literal)
        else f"{{{{{' | '.join((_placeholder_name(part.name), *part.functions))}}}}}"
        for part in template
    )


def _placeholder_name(name: str) -> str:
    return name if name in {"__line__", "__timestamp__"} else f".{name}"


def _first(condition: str) -> str:
    """Return a condition after `|`, where the name of a stage must not begin it."""
    name = condition[: len(condition) - len(condition.lstrip("abcdefghijklmnopqrstuvwxyz_"))]
    following = condition[len(name) : len(name) + 1]
    is_stage = name in {*STAGE_WORDS, "unwrap"} and following in " =!<>"
    return f"({condition})" if is_stage else condition


def _condition(condition: LabelCondition) -> str:
    match condition:
        case Matcher():
            return _matcher(condition)
        case Comparison():
            value = _quantity(condition.value, condition.unit)
            return f"{condition.name} {condition.operator} {value}"
        case Both(left, right):
            left_text, right_text = _condition(left), _condition(right)
            if isinstance(left, Either):
                left_text = f"({left_text})"
            if isinstance(right, Both | Either):
                right_text = f"({right_text})"
            return f"{left_text} and {right_text}"
        case Either(left, right):
            right_text = _condition(right)
            if isinstance(right, Either):
                right_text = f"({right_text})"
            return f"{_condition(left)} or {right_text}"
        case _:
            assert_never(condition)


def _quantity(value: Decimal, unit: Unit) -> str:
    match unit:
        case Unit.NUMBER:
            return _number(value)
        case Unit.DURATION:
            value_ns = EXACT.multiply(value, Decimal(NS_PER_S))
            if value_ns == int(value_ns):
                return _duration(int(value_ns))
            return f"{value:f}s"
        case Unit.BYTES:
            fitting = [name for name, size in SIZE_BYTES.items() if not value % size] or ["B"]
            texts = [f"{_plain(EXACT.divide(value, SIZE_BYTES[name]))}{name}" for name in fitting]
            return min(texts, key=len)
        case _:
            assert_never(unit)


def _number(value: Decimal) -> str:
    text = _plain(value)
    return text if len(text) <= _DIGITS_MAX else str(value)


def _plain(value: Decimal) -> str:
    """Return a number without an exponent and without zeros at its end."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _duration(value_ns: int) -> str:
    """Return a duration in the largest unit of which it is a multiple."""
    for unit in _UNITS_SHOWN:
        size_ns = int(DURATION_S[unit] * NS_PER_S)
        if value_ns and value_ns % size_ns == 0:
            return f"{value_ns // size_ns}{unit}"
    return "0s"
