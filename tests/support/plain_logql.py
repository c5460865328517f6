"""LogQL evaluated one record at a time in plain Python, to compare the planner's results with.

It shares the tree with the product and nothing else. Its rules are those of Grafana Loki's
documentation of LogQL; a question whose result that leaves open is not for it:
a JSON null, an invalid pair in logfmt, a sample that cannot be converted.
"""

import json
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation

from sluice_query.logql.expressions import (
    BinaryOperation,
    BinaryOperator,
    Both,
    CompareOperator,
    Comparison,
    Conversion,
    Drop,
    Either,
    Evaluation,
    Expression,
    Grouping,
    JsonParser,
    Keep,
    LabelCondition,
    LabelFilter,
    LabelFormat,
    LabelRename,
    LineFilter,
    LineFormat,
    LineOperator,
    Literal,
    LogfmtParser,
    LogQuery,
    Matcher,
    MatchOperator,
    MetricQuery,
    PatternParser,
    RangeAggregation,
    RangeOperator,
    RegexpParser,
    Stage,
    Template,
    Unit,
    VectorAggregation,
    VectorOperator,
)

Labels = Mapping[str, str]
SeriesKey = tuple[tuple[str, str], ...]
Values = dict[SeriesKey, float]
"""The value of each series at one time."""
_NS_PER_S = 10**9
_ERROR = "__error__"
_DETAILS = "__error_details__"
_DURATION_S = {
    "ns": Decimal("1e-9"),
    "us": Decimal("1e-6"),
    "µs": Decimal("1e-6"),
    "ms": Decimal("1e-3"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
}
_SIZES = {
    "": 1,
    "b": 1,
    **{f"{one}b": 1000**at for at, one in enumerate("kmgtpe", 1)},
    **{f"{one}ib": 1024**at for at, one in enumerate("kmgtpe", 1)},
    **{one: 1000**at for at, one in enumerate("kmgtpe", 1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainRecord:
    """One record: its time, line, and the labels that it has before any stage."""

    at_ns: int
    line: str
    labels: Labels


def select(query: LogQuery, records: Iterable[PlainRecord]) -> list[PlainRecord]:
    """Return the records that pass, as the last stage leaves them, in the given order."""
    return [found for one in records if (found := _process(query, one)) is not None]


def evaluate(
    query: MetricQuery, records: Iterable[PlainRecord], evaluation: Evaluation
) -> dict[SeriesKey, dict[int, float]]:
    """Return the points of each series, by time."""
    known = list(records)
    found: dict[SeriesKey, dict[int, float]] = defaultdict(dict)
    steps = range(evaluation.start_ns, evaluation.end_ns + 1, evaluation.step_ns)
    for at_ns in steps:
        for key, value in _values(query, known, at_ns).items():
            found[key][at_ns] = value
    return dict(found)


def run(
    question: Expression, records: Iterable[PlainRecord], evaluation: Evaluation
) -> list[PlainRecord] | dict[SeriesKey, dict[int, float]]:
    """Return what a question is answered with: records or series."""
    if isinstance(question, LogQuery):
        return select(question, records)
    return evaluate(question, records, evaluation)


def _process(query: LogQuery, record: PlainRecord) -> PlainRecord | None:
    if not all(_matches(one, record.labels) for one in query.matchers):
        return None
    line, labels = record.line, dict(record.labels)
    for stage in query.stages:
        changed = _apply(stage, record, line, labels)
        if changed is None:
            return None
        line = changed
    return PlainRecord(at_ns=record.at_ns, line=line, labels=labels)


def _apply(stage: Stage, record: PlainRecord, line: str, labels: dict[str, str]) -> str | None:
    """Change the labels and return the line; None if the record does not pass."""
    match stage:
        case LineFilter():
            return line if _passes(stage, line) else None
        case LabelFilter():
            return line if _meets(stage.condition, labels) else None
        case LineFormat():
            return _filled(stage.template, line, labels, record.at_ns)
        case JsonParser():
            _parse_json(stage, line, labels, record.labels)
        case LogfmtParser():
            _parse_logfmt(stage, line, labels, record.labels)
        case PatternParser():
            _extract(labels, _by_pattern(stage.pattern, line), record.labels)
        case RegexpParser():
            found = re.search(stage.pattern, line)
            pairs = {} if found is None else found.groupdict()
            _extract(
                labels,
                {name: text for name, text in pairs.items() if text is not None},
                record.labels,
            )
        case Drop():
            for name in _named(stage, labels):
                labels.pop(name, None)
        case Keep():
            kept = set(_named(stage, labels))
            for name in [*labels]:
                if name not in kept:
                    labels.pop(name, None)
        case LabelFormat():
            for change in stage.changes:
                if isinstance(change, LabelRename):
                    if change.source in labels:
                        labels[change.target] = labels.pop(change.source)
                else:
                    labels[change.target] = _filled(change.template, line, labels, record.at_ns)
    return line


def _matches(matcher: Matcher, labels: Labels) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.operator:
        case MatchOperator.EQUAL:
            return value == matcher.value
        case MatchOperator.UNEQUAL:
            return value != matcher.value
        case MatchOperator.MATCHES:
            return re.fullmatch(matcher.value, value) is not None
        case MatchOperator.MATCHES_NOT:
            return re.fullmatch(matcher.value, value) is None


def _passes(stage: LineFilter, line: str) -> bool:
    tests: dict[LineOperator, Callable[[str], bool]] = {
        LineOperator.CONTAINS: lambda value: value in line,
        LineOperator.MATCHES: lambda value: re.search(value, line) is not None,
        LineOperator.PATTERN: lambda value: _pattern_matches(value, line),
    }
    positive = LineOperator("|" + {"=": "=", "~": "~", ">": ">"}[stage.operator.value[1]])
    return any(map(tests[positive], stage.values)) != stage.operator.is_negative


def _pattern_matches(pattern: str, line: str) -> bool:
    """Return whether the literals of a pattern are in the line, in order, anchored at both ends."""
    parts = [re.escape(one) for one in pattern.split("<_>")]
    return re.fullmatch("(?s:.+?)".join(parts), line, re.DOTALL) is not None


def _meets(condition: LabelCondition, labels: dict[str, str]) -> bool:  # noqa: PLR0911 - one for each form
    match condition:
        case Matcher():
            return _matches(condition, labels)
        case Both():
            return _meets(condition.left, labels) and _meets(condition.right, labels)
        case Either():
            return _meets(condition.left, labels) or _meets(condition.right, labels)
        case Comparison():
            if labels.get(_ERROR):
                return True
            if not labels.get(condition.name):
                return False
            number = _number(labels[condition.name], condition.unit)
            if number is None:
                labels[_ERROR] = "LabelFilterErr"
                return True
            return _compared(condition.operator, number, condition.value)


def _number(text: str, unit: Unit) -> Decimal | None:
    """Return the number of a label's text; None if it has another form."""
    if unit is Unit.NUMBER:
        try:
            return Decimal(text) if text == text.strip() and "_" not in text else None
        except InvalidOperation:
            return None
    if unit is Unit.DURATION:
        parts = re.findall(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)", text)
        whole = "".join(number + name for number, name in parts)
        sign = -1 if text.startswith("-") else 1
        if not parts or whole != text.lstrip("+-"):
            return None
        return sign * sum(
            (Decimal(number) * _DURATION_S[name] for number, name in parts), Decimal(0)
        )
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+) ?([a-zA-Z]*)", text)
    if found is None or found[2].lower() not in _SIZES:
        return None
    return Decimal(int(Decimal(found[1]) * _SIZES[found[2].lower()]))


def _compared(operator: CompareOperator, left: Decimal, right: Decimal) -> bool:
    return {
        CompareOperator.EQUAL: left == right,
        CompareOperator.UNEQUAL: left != right,
        CompareOperator.GREATER: left > right,
        CompareOperator.AT_LEAST: left >= right,
        CompareOperator.LESS: left < right,
        CompareOperator.AT_MOST: left <= right,
    }[operator]


def _label(key: str) -> str:
    name = re.sub("[^A-Za-z0-9_]", "_", key)
    return f"_{name}" if name[:1].isdigit() else name


def _extract(labels: dict[str, str], pairs: Labels, own: Labels) -> None:
    """Add what a parser found: a label of the record keeps its value, the new one gets a suffix."""
    for name, text in pairs.items():
        labels[f"{name}_extracted" if own.get(name) else name] = text


def _parse_json(stage: JsonParser, line: str, labels: dict[str, str], own: Labels) -> None:
    try:
        found = json.loads(line, parse_float=_Text, parse_int=_Text)
    except ValueError:
        labels[_ERROR] = "JSONParserErr"
        return
    if not isinstance(found, dict):
        labels[_ERROR] = "JSONParserErr"
        return
    if not stage.extractions:
        _extract(labels, dict(_flattened(found, "")), own)
        return
    named = {one.label: _at_path(found, one.path) for one in stage.extractions}
    texts = {label: _text_of(value) for label, value in named.items() if value is not None}
    _extract(labels, _with_missing(texts, named, labels), own)


def _with_missing(texts: Labels, named: Iterable[str], labels: Labels) -> Labels:
    """Return the found texts, and an empty one for each name that no label has yet."""
    return {**{name: "" for name in named if name not in labels}, **texts}


class _Text(str):
    """The digits of a number in JSON, as they were written."""

    __slots__ = ()


def _text_of(value: object) -> str:
    if isinstance(value, _Text | str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _flattened(value: dict[str, object], before: str) -> Iterable[tuple[str, str]]:
    for key, one in value.items():
        name = _label(f"{before}{key}")
        if isinstance(one, dict):
            yield from _flattened(one, f"{name}_")
        elif not isinstance(one, list) and one is not None:
            yield name, _text_of(one)


def _at_path(value: object, path: str) -> object:
    for name, at, quoted in re.findall(r'\.?([A-Za-z_]\w*)|\[(\d+)\]|\["([^"]*)"\]', path):
        if at:
            if not isinstance(value, list) or int(at) >= len(value):
                return None
            value = value[int(at)]
        elif isinstance(value, dict):
            value = value.get(name or quoted)
        else:
            return None
    return value


def _parse_logfmt(stage: LogfmtParser, line: str, labels: dict[str, str], own: Labels) -> None:
    pairs = {}
    for found in re.finditer(r'([^\s="]+)=(?:"((?:[^"\\]|\\.)*)"|([^\s"]*))', line):
        text = found[3] if found[2] is None else str(json.loads(f'"{found[2]}"'))
        pairs[found[1]] = text
    if stage.extractions:
        named = {one.label: pairs.get(one.path) for one in stage.extractions}
        texts = {label: text for label, text in named.items() if text is not None}
        _extract(labels, _with_missing(texts, named, labels), own)
    else:
        kept = {_label(key): text for key, text in pairs.items() if text or stage.keeps_empty}
        _extract(labels, kept, own)


def _by_pattern(pattern: str, line: str) -> Labels:
    """Return what the captures of a pattern are, up to the first that no literal ends.

    As in Loki, an empty line matches no pattern, so labels keep their values.
    """
    parts = re.split(r"<([A-Za-z_]\w*)>", pattern)
    if not line or not line.startswith(parts[0]):
        return {}
    rest = line[len(parts[0]) :]
    found: dict[str, str] = {}
    for name, literal in zip(parts[1::2], parts[2::2], strict=True):
        value, separator, rest = rest.partition(literal) if literal else (rest, "", "")
        if name != "_":
            found[name] = value
        if literal and not separator:
            return found
    return found


def _named(stage: Drop | Keep, labels: Labels) -> list[str]:
    wanted = [name for name in labels if name in stage.names]
    return [
        *wanted,
        *(one.name for one in stage.matchers if one.name in labels and _matches(one, labels)),
    ]


def _filled(template: Template, line: str, labels: Labels, at_ns: int) -> str:
    texts = []
    for part in template:
        if isinstance(part, Literal):
            texts.append(part.text)
            continue
        special = {"__line__": line, "__timestamp__": str(at_ns)}
        text = special.get(part.name, labels.get(part.name, ""))
        for function in part.functions:
            text = {"lower": text.lower(), "upper": text.upper(), "trim": text.strip()}[function]
        texts.append(text)
    return "".join(texts)


def _values(query: MetricQuery | Decimal, records: list[PlainRecord], at_ns: int) -> Values:
    match query:
        case RangeAggregation():
            return _ranged(query, records, at_ns)
        case VectorAggregation():
            return _aggregated(query, _values(query.inner, records, at_ns))
        case BinaryOperation():
            return _combined(query, records, at_ns)
        case Decimal():
            return {(): float(query)}


def _ranged(query: RangeAggregation, records: list[PlainRecord], at_ns: int) -> Values:
    end_ns = at_ns - query.offset_ns
    wanted = [one for one in records if end_ns - query.range_ns < one.at_ns <= end_ns]
    groups: dict[SeriesKey, list[tuple[int, float]]] = defaultdict(list)
    for one in select(query.query, wanted):
        labels = dict(one.labels)
        value = float(len(one.line.encode()))
        if query.unwrap is not None:
            text = labels.pop(query.unwrap.name, None)
            if not text:
                continue
            unit = {Conversion.NUMBER: Unit.NUMBER, Conversion.DURATION: Unit.DURATION}
            number = _number(text, unit.get(query.unwrap.conversion, Unit.BYTES))
            if number is None:
                raise ValueError(f"the sample cannot be converted: {text}")
            value = float(number)
            if not all(_meets(condition, labels) for condition in query.unwrap.conditions):
                continue
        groups[_grouped(query.grouping, labels)].append((one.at_ns, value))
    return {key: _of_range(query, sorted(found)) for key, found in groups.items()}


def _of_range(query: RangeAggregation, found: list[tuple[int, float]]) -> float:  # noqa: PLR0911 - one for each operator
    numbers = [number for _, number in found]
    seconds = query.range_ns / _NS_PER_S
    match query.operator:
        case RangeOperator.COUNT:
            return float(len(numbers))
        case RangeOperator.RATE:
            return (len(numbers) if query.unwrap is None else math.fsum(numbers)) / seconds
        case RangeOperator.BYTES | RangeOperator.SUM:
            return math.fsum(numbers)
        case RangeOperator.BYTES_RATE:
            return math.fsum(numbers) / seconds
        case RangeOperator.AVG:
            return math.fsum(numbers) / len(numbers)
        case RangeOperator.MIN:
            return min(numbers)
        case RangeOperator.MAX:
            return max(numbers)
        case RangeOperator.FIRST:
            return numbers[0]
        case RangeOperator.LAST:
            return numbers[-1]
        case RangeOperator.QUANTILE:
            return _quantile(sorted(numbers), float(query.parameter or 0))


def _quantile(numbers: list[float], rank: float) -> float:
    """Return a quantile as Prometheus computes it: linear between the two nearest numbers."""
    place = rank * (len(numbers) - 1)
    low = math.floor(place)
    high = min(low + 1, len(numbers) - 1)
    return numbers[low] * (1 - (place - low)) + numbers[high] * (place - low)


def _grouped(grouping: Grouping | None, labels: Labels) -> SeriesKey:
    if grouping is None:
        kept = labels
    elif grouping.is_without:
        kept = {name: text for name, text in labels.items() if name not in grouping.names}
    else:
        kept = {name: labels[name] for name in grouping.names if name in labels}
    return tuple(sorted((name, text) for name, text in kept.items() if text))


def _aggregated(query: VectorAggregation, values: Values) -> Values:
    groups: dict[SeriesKey, dict[SeriesKey, float]] = defaultdict(dict)
    for key, value in values.items():
        # Without `by`, everything is one group.
        grouping = query.grouping or Grouping(())
        groups[_grouped(grouping, dict(key))][key] = value
    if query.operator in (VectorOperator.TOPK, VectorOperator.BOTTOMK):
        sign = -1 if query.operator is VectorOperator.TOPK else 1
        return {
            key: value
            for found in groups.values()
            for key, value in sorted(
                found.items(), key=lambda one: (math.isnan(one[1]), sign * one[1], one[0])
            )[: query.parameter]
        }
    functions: dict[VectorOperator, Callable[[list[float]], float]] = {
        VectorOperator.SUM: math.fsum,
        VectorOperator.AVG: lambda found: math.fsum(found) / len(found),
        VectorOperator.MIN: lambda found: min(_numbers(found), default=math.nan),
        VectorOperator.MAX: lambda found: max(_numbers(found), default=math.nan),
        VectorOperator.COUNT: lambda found: float(len(found)),
    }
    compute = functions[query.operator]
    return {key: compute([*found.values()]) for key, found in groups.items()}


def _numbers(found: list[float]) -> list[float]:
    return [one for one in found if not math.isnan(one)]


def _combined(query: BinaryOperation, records: list[PlainRecord], at_ns: int) -> Values:
    left, right = (_values(one, records, at_ns) for one in (query.left, query.right))
    if isinstance(query.left, Decimal):
        pairs = {key: (left[()], value) for key, value in right.items()}
    elif isinstance(query.right, Decimal):
        pairs = {key: (value, right[()]) for key, value in left.items()}
    else:
        pairs = {key: (value, right[key]) for key, value in left.items() if key in right}
    found = {}
    for key, (one, other) in pairs.items():
        value = _operated(query.operator, one, other)
        if isinstance(value, bool):
            if value:  # a comparison keeps the value of the series
                found[key] = other if isinstance(query.left, Decimal) else one
        else:
            found[key] = value
    return found


def _operated(operator: BinaryOperator, left: float, right: float) -> float | bool:  # noqa: PLR0911 - one for each operator
    match operator:
        case BinaryOperator.ADD:
            return left + right
        case BinaryOperator.SUBTRACT:
            return left - right
        case BinaryOperator.MULTIPLY:
            return left * right
        case BinaryOperator.DIVIDE:
            if right:
                return left / right
            return math.nan if not left or math.isnan(left) else math.copysign(math.inf, left)
        case BinaryOperator.MODULO:
            return math.fmod(left, right) if right else math.nan
        case BinaryOperator.POWER:
            return float(left**right)
        case BinaryOperator.EQUAL:
            return left == right
        case BinaryOperator.UNEQUAL:
            return left != right
        case BinaryOperator.GREATER:
            return left > right
        case BinaryOperator.AT_LEAST:
            return left >= right
        case BinaryOperator.LESS:
            return left < right
        case BinaryOperator.AT_MOST:
            return left <= right
