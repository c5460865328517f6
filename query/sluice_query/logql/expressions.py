"""A LogQL question as a value: the tree that the parser returns.

The forms and their meaning are those of Grafana Loki's documentation of LogQL.
"""

from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from sluice_protocol.units import UnixNs


class MatchOperator(StrEnum):
    """How a label is compared with a text; patterns must match the whole value."""

    EQUAL = "="
    UNEQUAL = "!="
    MATCHES = "=~"
    MATCHES_NOT = "!~"


class LineOperator(StrEnum):
    """How a line is filtered; texts and patterns may match any part of it."""

    CONTAINS = "|="
    CONTAINS_NOT = "!="
    MATCHES = "|~"
    MATCHES_NOT = "!~"
    PATTERN = "|>"
    PATTERN_NOT = "!>"

    @property
    def is_negative(self) -> bool:
        """Whether it keeps the lines without a match."""
        return self.value.startswith("!")


class CompareOperator(StrEnum):
    """How a label is compared with a number, a duration or a size."""

    EQUAL = "=="
    UNEQUAL = "!="
    GREATER = ">"
    AT_LEAST = ">="
    LESS = "<"
    AT_MOST = "<="


class Unit(StrEnum):
    """What the number of a comparison is; the label's text is read as the same."""

    NUMBER = "number"
    DURATION = "duration"
    """Seconds."""
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Matcher:
    """`name="value"`. A label that a record does not have is the empty text."""

    name: str
    operator: MatchOperator
    value: str


@dataclass(frozen=True, slots=True)
class LineFilter:
    """`|= "a" or "b"`: a line with any of the texts passes a positive filter, and no negative."""

    operator: LineOperator
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Extraction:
    """`label="path"` of a parser: the value at the path becomes the label."""

    label: str
    path: str


@dataclass(frozen=True, slots=True)
class JsonParser:
    """`| json`; without extractions every member becomes a label."""

    extractions: tuple[Extraction, ...] = ()


@dataclass(frozen=True, slots=True)
class LogfmtParser:
    """`| logfmt`; without extractions every pair becomes a label."""

    extractions: tuple[Extraction, ...] = ()
    is_strict: bool = False
    keeps_empty: bool = False


@dataclass(frozen=True, slots=True)
class PatternParser:
    """`| pattern "<ip> - <_> <path>"`."""

    pattern: str


@dataclass(frozen=True, slots=True)
class RegexpParser:
    """`| regexp "(?P<name>…)"`: each named group becomes a label."""

    pattern: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """`name > 5`, `name >= 250ms`, `name < 1KB`."""

    name: str
    operator: CompareOperator
    value: Decimal
    unit: Unit = Unit.NUMBER


@dataclass(frozen=True, slots=True)
class Both:
    """`left and right`, also written with a comma or a space."""

    left: "LabelCondition"
    right: "LabelCondition"


@dataclass(frozen=True, slots=True)
class Either:
    """`left or right`."""

    left: "LabelCondition"
    right: "LabelCondition"


LabelCondition = Matcher | Comparison | Both | Either


@dataclass(frozen=True, slots=True)
class LabelFilter:
    """`| status >= 500 and path != "/"`."""

    condition: LabelCondition


@dataclass(frozen=True, slots=True)
class Drop:
    """`| drop a, b="x"`: remove the labels that have one of the names or meet a matcher."""

    names: tuple[str, ...] = ()
    matchers: tuple[Matcher, ...] = ()


@dataclass(frozen=True, slots=True)
class Keep:
    """`| keep a, b="x"`: remove all other labels."""

    names: tuple[str, ...] = ()
    matchers: tuple[Matcher, ...] = ()


@dataclass(frozen=True, slots=True)
class Literal:
    """Text of a template between its actions."""

    text: str


@dataclass(frozen=True, slots=True)
class Placeholder:
    """`{{.name}}`, or `{{.name | lower}}` with functions of `lexer.py`.

    `__line__` is the line, and `__timestamp__` the time of the record.
    """

    name: str
    functions: tuple[str, ...] = ()


Template = tuple[Literal | Placeholder, ...]


@dataclass(frozen=True, slots=True)
class LineFormat:
    """`| line_format "{{.method}} {{.path}}"`."""

    template: Template


@dataclass(frozen=True, slots=True)
class LabelRename:
    """`target=source` of `label_format`; the source is removed."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class LabelTemplate:
    """`target="{{.a}}-{{.b}}"` of `label_format`."""

    target: str
    template: Template


@dataclass(frozen=True, slots=True)
class LabelFormat:
    """`| label_format a=b, c="{{.d}}"`."""

    changes: tuple[LabelRename | LabelTemplate, ...]


Stage = (
    LineFilter
    | JsonParser
    | LogfmtParser
    | PatternParser
    | RegexpParser
    | LabelFilter
    | Drop
    | Keep
    | LineFormat
    | LabelFormat
)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """`{selector} stages`: records. `{}` selects all of them."""

    matchers: tuple[Matcher, ...] = ()
    stages: tuple[Stage, ...] = ()


class Conversion(StrEnum):
    """How `unwrap` reads the text of its label."""

    NUMBER = ""
    DURATION = "duration"
    """Seconds; `duration_seconds` is another name."""
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class Unwrap:
    """`| unwrap duration(latency)`, and the label filters that follow it."""

    name: str
    conversion: Conversion = Conversion.NUMBER
    conditions: tuple[LabelCondition, ...] = ()


@dataclass(frozen=True, slots=True)
class Grouping:
    """`by (a, b)` or `without (a, b)`."""

    names: tuple[str, ...]
    is_without: bool = False


class RangeOperator(StrEnum):
    """What is computed from the records, or from the unwrapped numbers, of a range."""

    COUNT = "count_over_time"
    RATE = "rate"
    BYTES = "bytes_over_time"
    BYTES_RATE = "bytes_rate"
    SUM = "sum_over_time"
    AVG = "avg_over_time"
    MIN = "min_over_time"
    MAX = "max_over_time"
    FIRST = "first_over_time"
    LAST = "last_over_time"
    QUANTILE = "quantile_over_time"


NUMBER_OPERATORS: Final = frozenset(
    {
        RangeOperator.SUM,
        RangeOperator.AVG,
        RangeOperator.MIN,
        RangeOperator.MAX,
        RangeOperator.FIRST,
        RangeOperator.LAST,
        RangeOperator.QUANTILE,
    }
)
"""Operators that need `unwrap`; with `unwrap`, `rate` is the sum of the numbers a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeAggregation:
    """`rate({app="x"} |= "error" [5m] offset 1h)`.

    Attributes:
        range_ns: A value at `t` is of the records in `(t - range_ns - offset_ns, t - offset_ns]`.
        parameter: The quantile, 0 to 1.
    """

    operator: RangeOperator
    query: LogQuery
    range_ns: int
    offset_ns: int = 0
    unwrap: Unwrap | None = None
    parameter: Decimal | None = None
    grouping: Grouping | None = None


class VectorOperator(StrEnum):
    """How the values of several series become fewer."""

    SUM = "sum"
    AVG = "avg"
    MIN = "min"
    MAX = "max"
    COUNT = "count"
    TOPK = "topk"
    BOTTOMK = "bottomk"


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorAggregation:
    """`topk by (path) (10, …)`; `parameter` is the number of series of `topk` and `bottomk`."""

    operator: VectorOperator
    inner: "MetricQuery"
    parameter: int | None = None
    grouping: Grouping | None = None


class BinaryOperator(StrEnum):
    """Arithmetic, and comparisons, which keep the values that meet them."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    MODULO = "%"
    POWER = "^"
    EQUAL = "=="
    UNEQUAL = "!="
    GREATER = ">"
    AT_LEAST = ">="
    LESS = "<"
    AT_MOST = "<="


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryOperation:
    """`left / right`: of two queries, the series with the same labels; of a number, each series.

    At most one side is a number: the parser computes an operation of two.
    """

    operator: BinaryOperator
    left: "MetricQuery | Decimal"
    right: "MetricQuery | Decimal"


MetricQuery = RangeAggregation | VectorAggregation | BinaryOperation
Expression = LogQuery | MetricQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The times at which a metric query is evaluated: `start_ns`, each `step_ns` later, `end_ns`.

    At one time only, `start_ns` equals `end_ns`.
    """

    start_ns: UnixNs
    end_ns: UnixNs
    step_ns: int
