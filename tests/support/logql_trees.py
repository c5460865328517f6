"""Random LogQL questions as trees, for tests of the parser and of what evaluates them."""

from decimal import Decimal

from hypothesis import strategies as st

from sluice_query.logql.expressions import (
    NUMBER_OPERATORS,
    BinaryOperation,
    BinaryOperator,
    Both,
    CompareOperator,
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
    LineOperator,
    Literal,
    LogfmtParser,
    LogQuery,
    Matcher,
    MatchOperator,
    MetricQuery,
    PatternParser,
    Placeholder,
    RangeAggregation,
    RangeOperator,
    RegexpParser,
    Stage,
    Template,
    Unit,
    Unwrap,
    VectorAggregation,
    VectorOperator,
)
from sluice_query.logql.grammar import GROUPED_RANGES

WORDS = (
    *("app", "level", "status", "duration", "bytes", "json", "drop", "unwrap", "by", "or", "and"),
    *("offset", "rate", "sum", "ip", "__error__", "_", "A1", "logfmt", "not", "bool", "keep"),
)
NAMES = st.sampled_from(WORDS)
_OTHERS = ("", "error", r"\d+", '"', "`", "\n", "\r\\", "é\u2028", "\x00", "a`\\b", "# no comment")
TEXTS = st.sampled_from(_OTHERS) | st.text(max_size=6)
_LISTED = st.lists(NAMES, max_size=3).map(tuple)
_DISTINCT = st.lists(NAMES, min_size=1, max_size=3, unique=True).map(tuple)
MATCHERS = st.builds(Matcher, NAMES, st.sampled_from(MatchOperator), TEXTS)
_EXACT = st.builds(
    lambda digits, places: Decimal(digits).scaleb(-places),
    st.integers(-(10**13), 10**13),
    st.integers(0, 12),
)
_NUMBERS = _EXACT | st.sampled_from([Decimal(one) for one in ("1e40", "-1e300", "1e-300", "0")])


def _compared(unit: Unit) -> st.SearchStrategy[Comparison]:
    values = _NUMBERS if unit is Unit.NUMBER else _EXACT
    return st.builds(Comparison, NAMES, st.sampled_from(CompareOperator), values, st.just(unit))


CONDITIONS: st.SearchStrategy[LabelCondition] = st.recursive(
    MATCHERS | st.one_of([_compared(unit) for unit in Unit]),
    lambda inner: st.builds(Both, inner, inner) | st.builds(Either, inner, inner),
    max_leaves=6,
)
"""Conditions on labels."""


def _template(parts: list[Literal | Placeholder]) -> Template:
    """Return a template as the parser does: no two texts in a row."""
    return tuple(
        part
        for at, part in enumerate(parts)
        if at == 0 or not (isinstance(part, Literal) and isinstance(parts[at - 1], Literal))
    )


_LITERALS = st.builds(Literal, TEXTS.map(lambda text: text.replace("{", "") or "/"))
_PLACEHOLDERS = st.builds(
    Placeholder,
    NAMES | st.sampled_from(("__line__", "__timestamp__")),
    st.lists(st.sampled_from(("lower", "upper", "trim")), max_size=2).map(tuple),
)
TEMPLATES = st.lists(_LITERALS | _PLACEHOLDERS, max_size=4).map(_template)
"""Templates; a brace before an action would be part of it."""


def _label_format(changes: list[LabelRename | LabelTemplate]) -> LabelFormat:
    return LabelFormat(tuple({one.target: one for one in changes}.values()))


_TARGETS = NAMES.filter(lambda name: not name.startswith("__error"))
_RENAMES = st.builds(LabelRename, _TARGETS, NAMES)
_CHANGES = _RENAMES | st.builds(LabelTemplate, _TARGETS, TEMPLATES)
_LINE_PATTERNS = st.sampled_from(("<_> a", "GET <_> [<_>]", "plain", "", '"<_>"', "\\<_> <a b>"))
_PATHS = st.sampled_from(("a", "a.b", "a[0]", '["a b"].c', 'a.b[10]["c\\"d"]'))
_KEYS = st.sampled_from(("a", "http.status", "é"))


def _extracted(paths: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Extraction, ...]]:
    return st.lists(st.builds(Extraction, NAMES, paths), max_size=2).map(tuple)


def _pattern(names: tuple[str, ...]) -> str:
    return " ".join(f"<{name}>" for name in ("A1", *names))


def _regexp(names: tuple[str, ...]) -> str:
    return "".join(rf"(?P<{name}>\w+) " for name in names)


_LISTS_KEPT = (_LISTED, st.lists(MATCHERS, min_size=1, max_size=2).map(tuple))
STAGES: st.SearchStrategy[Stage] = st.one_of(
    st.builds(
        LineFilter,
        st.sampled_from([one for one in LineOperator if ">" not in one.value]),
        st.lists(TEXTS, min_size=1, max_size=3).map(tuple),
    ),
    st.builds(
        LineFilter,
        st.sampled_from((LineOperator.PATTERN, LineOperator.PATTERN_NOT)),
        st.lists(_LINE_PATTERNS, min_size=1, max_size=2).map(tuple),
    ),
    st.builds(JsonParser, _extracted(_PATHS)),
    st.builds(LogfmtParser, _extracted(_KEYS), st.booleans(), st.booleans()),
    st.builds(PatternParser, _DISTINCT.filter(lambda names: "A1" not in names).map(_pattern)),
    st.builds(RegexpParser, _DISTINCT.map(_regexp)),
    st.builds(LabelFilter, CONDITIONS),
    st.builds(Drop, _DISTINCT),
    st.builds(Drop, *_LISTS_KEPT),
    st.builds(Keep, _DISTINCT),
    st.builds(Keep, *_LISTS_KEPT),
    st.builds(LineFormat, TEMPLATES),
    st.lists(_CHANGES, min_size=1, max_size=3).map(_label_format),
)
"""Stages of each form."""


def _readable(stages: list[Stage]) -> tuple[Stage, ...]:
    """Leave out a filter whose operator would be that of the label before it: `drop a != ""`."""
    operators = (LineOperator.CONTAINS_NOT, LineOperator.MATCHES_NOT)
    found: list[Stage] = []
    for stage in stages:
        is_negative = isinstance(stage, LineFilter) and stage.operator in operators
        if not (is_negative and found and isinstance(found[-1], Drop | Keep)):
            found.append(stage)
    return tuple(found)


LOG_QUERIES = st.builds(
    LogQuery, st.lists(MATCHERS, max_size=3).map(tuple), st.lists(STAGES, max_size=4).map(_readable)
)
"""Log queries."""
_GROUPINGS = st.none() | st.builds(Grouping, _LISTED, st.booleans())
_UNWRAPS = st.builds(
    Unwrap, NAMES, st.sampled_from(Conversion), st.lists(CONDITIONS, max_size=2).map(tuple)
)
_QUANTILES = st.sampled_from([Decimal(one) for one in ("0", "1", "0.5", "0.999")])
_RANGES_NS = st.sampled_from((1, 10**9, 300 * 10**9, 2**63 - 1)) | st.integers(1, 10**15)
_OFFSETS_NS = st.sampled_from((0, 3600 * 10**9, 2**63 - 1))


def _ranged(operator: RangeOperator) -> st.SearchStrategy[RangeAggregation]:
    is_quantile = operator is RangeOperator.QUANTILE
    unwraps = _UNWRAPS if operator in NUMBER_OPERATORS else st.none()
    return st.builds(
        RangeAggregation,
        operator=st.just(operator),
        query=LOG_QUERIES,
        range_ns=_RANGES_NS,
        offset_ns=_OFFSETS_NS,
        unwrap=st.none() | _UNWRAPS if operator is RangeOperator.RATE else unwraps,
        parameter=_QUANTILES if is_quantile else st.none(),
        grouping=_GROUPINGS if operator in GROUPED_RANGES else st.none(),
    )


def _larger(inner: st.SearchStrategy[MetricQuery]) -> st.SearchStrategy[MetricQuery]:
    limited = (VectorOperator.TOPK, VectorOperator.BOTTOMK)
    others = [one for one in VectorOperator if one not in limited]
    operators = st.sampled_from(BinaryOperator)
    return st.one_of(
        st.builds(
            VectorAggregation,
            operator=st.sampled_from(others),
            inner=inner,
            grouping=_GROUPINGS,
        ),
        st.builds(
            VectorAggregation,
            operator=st.sampled_from(limited),
            inner=inner,
            parameter=st.integers(1, 1000),
            grouping=_GROUPINGS,
        ),
        st.builds(BinaryOperation, operator=operators, left=inner, right=inner | _NUMBERS),
        st.builds(BinaryOperation, operator=operators, left=_NUMBERS, right=inner),
    )


METRIC_QUERIES: st.SearchStrategy[MetricQuery] = st.recursive(
    st.one_of([_ranged(operator) for operator in RangeOperator]), _larger, max_leaves=4
)
"""Metric queries."""
EXPRESSIONS: st.SearchStrategy[Expression] = LOG_QUERIES | METRIC_QUERIES
"""Questions of each kind."""
