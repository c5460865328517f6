"""The stages of a pipeline as SQL: each is a select over the one before it.

The innermost select has the columns of the records. The line of a record is in the column `line`,
its labels in the map `labels`, and the labels that it had before any stage in the map `own_labels`:
a parsed label with the name of one of these gets the suffix `_extracted`.

The maps contain what later stages and the result need, all labels only for records that are
returned. Parsing a line for a filter on one label therefore extracts one member.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, assert_never

from sluice_lake.tables import Column, ColumnType
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_query.logql.expressions import (
    Both,
    Comparison,
    Drop,
    Either,
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
    PatternParser,
    Placeholder,
    RegexpParser,
    Stage,
    Template,
    Unit,
)
from sluice_query.logql.lexer import parse_line_pattern, parse_path
from sluice_query.logql.names import field_of, hidden_fields, label_sql, labels_sql, sanitized
from sluice_query.request import NUMBER_PATTERN, RecordField, common_text
from sluice_query.statements import (
    REFUSED,
    Promoted,
    SqlStatement,
    SqlValue,
    all_conditions,
    any_condition,
    compose,
    field_sql,
    record_time,
)

ERROR: Final = "__error__"
DETAILS: Final = "__error_details__"
ERRORS: Final = frozenset({ERROR, DETAILS})
_SUFFIX: Final = "_extracted"
_TEXT_CHARS_MIN: Final = 3
"""Most lines have shorter texts of a pattern, so searching these first would save nothing."""
_DEPTH: Final = 8
"""Objects within each other whose members become labels."""

Wanted = frozenset[str] | None
"""The labels that later stages need; None for all of them."""


def with_filter(stage: LabelFilter, inner: SqlStatement) -> SqlStatement:
    """Return the select of the records that pass a filter of labels."""
    found = inner
    for one in _divided(stage):
        if isinstance(one, LabelFilter):
            found = _filtered(one.condition, found)
    return found


def staged_sql(
    pipeline: LogQuery,
    kind: Kind,
    inner: SqlStatement,
    wanted: Wanted,
    kept: frozenset[str] = frozenset(),
) -> SqlStatement:
    """Return the statement for the records of `inner` that pass the stages.

    It has the columns of `inner`, `line`, and `labels` with the wanted labels. All labels are those
    that a record is shown with, and those of the fields in `kept`. The matchers of the pipeline,
    and its first stages that `split_conditions` returns, are not part of it.
    """
    stages = [part for one in pipeline.stages for part in _divided(one)]
    demands = _demands(stages, wanted)
    hidden: list[str] = []
    if wanted is None:
        hidden = hidden_fields(sorted(_demands(stages, kept)[0] or ()), kind)
    found = _with_labels(inner, kind, demands[0], hidden)
    for stage, demand in zip(stages, demands[1:], strict=True):
        found = _stage_sql(stage, found, demand, kind)
    left_out = [one for one in hidden if one not in kept.union(*map(_named, stages))]
    return _reduced(Drop(tuple(left_out)), found, keeps=False) if left_out else found


def _demands(stages: Sequence[Stage], wanted: Wanted) -> list[Wanted]:
    """Return the labels that are needed before each stage, and those after the last."""
    demands = [wanted]
    for stage in reversed(stages):
        demands.insert(0, _needed(stage, demands[0]))
    return demands


def _named(stage: Stage) -> set[str]:
    """Return the labels that a stage makes or keeps."""
    if isinstance(stage, LabelFormat):
        return {one.target for one in stage.changes}
    return set(stage.names) if isinstance(stage, Keep) else set()


def changes_records(pipeline: LogQuery) -> bool:
    """Return whether the labels or the line of a record differ after the stages."""
    return any(not isinstance(one, LineFilter) and not _is_plain(one) for one in pipeline.stages)


def changes_lines(pipeline: LogQuery) -> bool:
    """Return whether a stage replaces the line of a record."""
    return any(isinstance(one, LineFormat) for one in pipeline.stages)


def _is_plain(stage: Stage) -> bool:
    """Return whether a stage only selects records by labels, and sets no error."""
    return isinstance(stage, LabelFilter) and not _comparisons(stage.condition)


def split_conditions(
    pipeline: LogQuery,
) -> tuple[tuple[Matcher, ...], tuple[LineFilter, ...], LogQuery]:
    """Return conditions on the records as they are stored, and the stages that are left.

    These are the matchers, filters on labels before any stage that changes some, and filters on
    lines before they change.
    """
    matchers, lines, rest = [*pipeline.matchers], [], []
    is_own_line = is_own_labels = True
    for stage in pipeline.stages:
        if isinstance(stage, LineFilter) and is_own_line:
            lines.append(stage)
            continue
        for part in _divided(stage):
            if is_own_labels and isinstance(part, LabelFilter):
                if isinstance(part.condition, Matcher):
                    matchers.append(part.condition)
                    continue
                is_own_labels = _is_plain(part)
            elif not isinstance(part, LineFilter | LabelFilter):
                is_own_labels = False
            is_own_line = is_own_line and not isinstance(part, LineFormat)
            rest.append(part)
    return tuple(matchers), tuple(lines), LogQuery((), tuple(rest))


def patterns_of(pipeline: LogQuery) -> Iterable[str]:
    """Yield the RE2 patterns of a pipeline."""
    matchers = [*pipeline.matchers]
    for stage in pipeline.stages:
        match stage:
            case LineFilter(operator=LineOperator.MATCHES | LineOperator.MATCHES_NOT):
                yield from stage.values
            case RegexpParser():
                yield stage.pattern
            case LabelFilter():
                leaves = _leaves(stage.condition)
                matchers += [one for one in leaves if isinstance(one, Matcher)]
            case Drop() | Keep():
                matchers += stage.matchers
            case _:
                pass
    for one in matchers:
        if one.operator in (MatchOperator.MATCHES, MatchOperator.MATCHES_NOT):
            yield one.value


def matched_pattern(pipeline: LogQuery) -> str | None:
    """Return the RE2 pattern of what the filters of lines found; None without such a filter."""
    _, lines, _ = split_conditions(pipeline)
    parts = []
    for one in lines:
        if one.operator is LineOperator.CONTAINS:
            parts += [_quoted(text) for text in one.values if text]
        elif one.operator is LineOperator.MATCHES:
            parts += [f"(?:{pattern})" for pattern in one.values]
    return "|".join(parts) or None


def own_condition(pipeline: LogQuery, kind: Kind, promoted: Promoted) -> SqlStatement:
    """Return the condition of matchers and filters of lines on a record as it is stored."""
    matchers, lines, _ = split_conditions(pipeline)
    # The plain comparisons are first, because the engine skips row groups by them.
    parts = [
        _in_column(column, one.value)
        for one in matchers
        if one.operator is MatchOperator.EQUAL and one.value
        if (column := promoted.get(RecordField("attributes", one.name))) is not None
    ]
    # Records without a value for most labels are many, so texts are compared before labels.
    parts += [line_condition(one, line_column(kind)) for one in lines]
    parts += [
        _in_attributes(one)
        for one in matchers
        if one.operator is MatchOperator.EQUAL and one.value
        if field_of(one.name, kind) is None
        if RecordField("attributes", one.name) not in promoted
    ]
    parts += [
        _matcher_sql(one, compose("coalesce({0}, '')", label_sql(one.name, kind, promoted)))
        for one in matchers
    ]
    return all_conditions(parts) if parts else SqlStatement("true")


def _in_column(column: Column, wanted: str) -> SqlStatement:
    """Return the condition that the promoted attribute of a label allows it to have a value.

    A record without the attribute, or with an empty one, may have the label elsewhere.
    """
    from sluice_lake.promoted import converted_text  # noqa: PLC0415 - only with such a column

    name, value = column.name, converted_text(wanted, column.type)
    if value is None:
        return SqlStatement(f"{name} IS NULL")
    empty = f" OR {name} = ''" if column.type is ColumnType.STRING else ""
    return SqlStatement(f"({name} = ? OR {name} IS NULL{empty})", (value,))


def _in_attributes(one: Matcher) -> SqlStatement:
    """Return the condition that the attribute of a label allows it to have a value.

    The engine decides it while it reads one column, and decodes the others for the rows that are
    left. The label itself depends on two columns, of which every row is decoded: where no record
    has the value, that takes twice as long.
    """
    value = field_sql(RecordField("attributes", one.name))
    return SqlStatement(f"coalesce({value.text}, '') IN ('', ?)", (*value.values, one.value))


def line_column(kind: Kind) -> str:
    """Return the column with the line of a record."""
    column = KINDS[kind].searched
    if column is None:
        raise BadUsage(
            f"{kind} are opaque bytes without lines: use a selector such as"
            ' {agent="…"} only, or another kind'
        )
    return column


def line_condition(one: LineFilter, column: str) -> SqlStatement:
    """Return the condition of a filter of lines on a column."""
    texts = []
    for value in one.values:
        match one.operator:
            case LineOperator.CONTAINS | LineOperator.CONTAINS_NOT:
                texts.append(SqlStatement(f"contains({column}, ?)", (value,)))
            case LineOperator.MATCHES | LineOperator.MATCHES_NOT:
                matched = SqlStatement(f"regexp_matches({column}, ?)", (value,))
                texts.append(_after_text(column, common_text(value), matched))
            case LineOperator.PATTERN | LineOperator.PATTERN_NOT:
                parts = value.split("<_>")
                pattern = "(?s:.+)".join(map(_quoted, parts))
                matched = SqlStatement(f"regexp_full_match({column}, ?)", (pattern,))
                texts.append(_after_text(column, max(parts, key=len), matched))
            case _:
                assert_never(one.operator)
    found = any_condition(texts)
    return compose("NOT {0}", found) if one.operator.is_negative else found


def _after_text(column: str, text: str, matched: SqlStatement) -> SqlStatement:
    """Return the condition of a pattern, of which every match contains a text.

    The engine searches a text while it reads a column, and decodes the other columns of the rows
    that have it; a pattern it compares afterwards.
    """
    if len(text) < _TEXT_CHARS_MIN:
        return matched
    return compose("({0} AND {1})", SqlStatement(f"contains({column}, ?)", (text,)), matched)


def _quoted(text: str) -> str:
    r"""Return the RE2 pattern of a text; `\Q` and `\E` would end at a `\E` inside of it."""
    return "".join(
        one if one.isalnum() or one in " _" or one > "\x7f" else f"\\x{{{ord(one):x}}}"
        for one in text
    )


def _matcher_sql(one: Matcher, value: SqlStatement) -> SqlStatement:
    given = SqlStatement("?", (one.value,))
    match one.operator:
        case MatchOperator.EQUAL:
            return compose("{0} = {1}", value, given)
        case MatchOperator.UNEQUAL:
            return compose("{0} <> {1}", value, given)
        case MatchOperator.MATCHES | MatchOperator.MATCHES_NOT:
            pattern = SqlStatement("?", (f"(?s:{one.value})",))
            is_not = "NOT " if one.operator is MatchOperator.MATCHES_NOT else ""
            return compose(f"{is_not}regexp_full_match({{0}}, {{1}})", value, pattern)
        case _:
            assert_never(one.operator)


def _divided(stage: Stage) -> list[Stage]:
    """Return a filter as one for each condition that must be met."""
    if isinstance(stage, LabelFilter) and isinstance(stage.condition, Both):
        sides = (stage.condition.left, stage.condition.right)
        return [part for side in sides for part in _divided(LabelFilter(side))]
    return [stage]


def _leaves(condition: LabelCondition) -> Iterable[Matcher | Comparison]:
    if isinstance(condition, Both | Either):
        yield from _leaves(condition.left)
        yield from _leaves(condition.right)
    else:
        yield condition


def _comparisons(condition: LabelCondition) -> list[Comparison]:
    return [one for one in _leaves(condition) if isinstance(one, Comparison)]


def condition_names(condition: LabelCondition) -> frozenset[str]:
    """Return the labels that a condition is about."""
    names = {one.name for one in _leaves(condition)}
    return frozenset(names | {ERROR} if _comparisons(condition) else names)


def _template_names(template: Template) -> set[str]:
    return {one.name for one in template if isinstance(one, Placeholder)}


def _needed(stage: Stage, after: Wanted) -> Wanted:  # noqa: C901, PLR0911 - a case for each form
    """Return the labels that a stage needs so that later ones have theirs."""
    if after is None:
        return None
    match stage:
        case LineFilter():
            return after
        case LabelFilter():
            return after | condition_names(stage.condition)
        case Drop() | Keep():
            # Later parsers compare with the labels that the record had before, kept or not.
            return after | {one.name for one in stage.matchers}
        case LineFormat():
            return after | _template_names(stage.template)
        case LabelFormat():
            names = set(after)
            for change in stage.changes:
                if isinstance(change, LabelRename):
                    names.add(change.source)
                else:
                    names |= _template_names(change.template)
            return frozenset(names)
        case JsonParser() | LogfmtParser() | PatternParser() | RegexpParser():
            return after | {one.removesuffix(_SUFFIX) for one in after}
        case _:
            assert_never(stage)


def _with_labels(
    inner: SqlStatement, kind: Kind, wanted: Wanted, hidden: Sequence[str]
) -> SqlStatement:
    line = KINDS[kind].searched or "NULL::VARCHAR"
    if wanted is not None:
        names = sorted(wanted - ERRORS)
        found = _map_of([(one, label_sql(one, kind)) for one in names])
        own = SqlStatement(
            f"SELECT *, {line} AS line, {found.text} AS own_labels FROM ({inner.text})",  # noqa: S608 - constants
            (*found.values, *inner.values),
        )
    else:
        entries = labels_sql(kind, hidden)
        listed = SqlStatement(
            f"SELECT *, {line} AS line, {entries.text} AS entries FROM ({inner.text})",  # noqa: S608 - constants
            (*entries.values, *inner.values),
        )
        own = over(
            "* EXCLUDE (entries, keys), " + _distinct_map() + " AS own_labels", _with_keys(listed)
        )
    return over("*, own_labels AS labels", own)


def over(
    columns: str,
    inner: SqlStatement,
    *,
    where: SqlStatement | None = None,
    values: Sequence[SqlValue] = (),
) -> SqlStatement:
    """Return a select over another, with the values of its columns and condition in order."""
    text = f"SELECT {columns} FROM ({inner.text})"  # noqa: S608 - constants
    if where is None:
        return SqlStatement(text, (*values, *inner.values))
    return SqlStatement(f"{text} WHERE {where.text}", (*values, *inner.values, *where.values))


def _with_keys(inner: SqlStatement) -> SqlStatement:
    return over("*, list_transform(entries, lambda one: one.k) AS keys", inner)


def _distinct_map() -> str:
    """Return the map of a list of entries; the first of a name counts."""
    return "map_from_entries(list_filter(entries, lambda one, nr: list_position(keys, one.k) = nr))"


def _map_of(pairs: Sequence[tuple[str, SqlStatement]]) -> SqlStatement:
    """Return the map of labels; a label without a value is NULL."""
    names = [name for name, _ in pairs]
    text = ", ".join(value.text for _, value in pairs)
    values = tuple(one for _, value in pairs for one in value.values)
    return SqlStatement(f"MAP(?::VARCHAR[], [{text}]::VARCHAR[])", (names, *values))


def _text(value: str) -> SqlStatement:
    return SqlStatement("CAST(? AS VARCHAR)", (value,))


def _value(name: str) -> SqlStatement:
    """Return the text of a label; empty without one."""
    return SqlStatement("coalesce(labels[?], '')", (name,))


def _stage_sql(  # noqa: C901, PLR0911 - a case for each form
    stage: Stage, inner: SqlStatement, wanted: Wanted, kind: Kind
) -> SqlStatement:
    match stage:
        case LineFilter():
            return over("*", inner, where=line_condition(stage, "line"))
        case LabelFilter():
            return _filtered(stage.condition, inner)
        case JsonParser(extractions=()) if wanted:
            return _json_members(inner, sorted(wanted - ERRORS))
        case LogfmtParser() if wanted and _has_fast_form(stage, wanted - ERRORS):
            return _logfmt_members(stage, inner, sorted(wanted - ERRORS))
        case JsonParser() | LogfmtParser() | PatternParser() | RegexpParser():
            # Without a label that is needed, a parser has no effect.
            return inner if wanted is not None and not wanted else _parsed(stage, inner, wanted)
        case Drop():
            return _reduced(stage, inner, keeps=False)
        case Keep():
            return _reduced(stage, inner, keeps=True)
        case LineFormat():
            line = _filled(stage.template, kind)
            return over(f"* REPLACE ({line.text} AS line)", inner, values=line.values)
        case LabelFormat():
            return _formatted(stage, inner, kind)
        case _:
            assert_never(stage)


def _formatted(stage: LabelFormat, inner: SqlStatement, kind: Kind) -> SqlStatement:
    """Return the select in which labels change, one after the other."""
    found = inner
    for change in stage.changes:
        if isinstance(change, LabelRename):
            source, target = _text(change.source), _text(change.target)
            others = (
                "map_from_entries(list_filter(map_entries(labels), lambda one: one.key <> {0}))"
            )
            changed = compose(
                f"CASE WHEN labels[{{0}}] IS NULL THEN labels ELSE map_concat({others},"
                " map_from_entries([struct_pack(k := {1}, v := labels[{0}])])) END",
                source,
                target,
            )
        else:
            changed = compose(
                "map_concat(labels, map_from_entries([struct_pack(k := {0}, v := {1})]))",
                _text(change.target),
                _filled(change.template, kind),
            )
        found = over(f"* REPLACE ({changed.text} AS labels)", found, values=changed.values)
    return found


def _filled(template: Template, kind: Kind) -> SqlStatement:
    parts = [SqlStatement("''")]
    for one in template:
        if isinstance(one, Literal):
            parts.append(_text(one.text))
            continue
        if one.name == "__line__":
            part = SqlStatement("line")
        elif one.name == "__timestamp__":
            part = SqlStatement(f"CAST({record_time(kind)} AS VARCHAR)")
        else:
            part = _value(one.name)
        for function in one.functions:
            part = compose(f"{function}({{0}})", part)
        parts.append(part)
    values = tuple(value for one in parts for value in one.values)
    made = SqlStatement(f"({' || '.join(one.text for one in parts)})", values)
    size = SqlStatement(" + ".join(f"strlen({one.text})" for one in parts), values)
    # Before it is made: the engine's limit of memory does not count the texts of a batch of rows.
    return compose(
        f"CASE WHEN {{0}} > {_FILLED_BYTES_MAX} THEN error('{REFUSED}{_TOO_LONG}') ELSE {{1}} END",
        size,
        made,
    )


_FILLED_BYTES_MAX: Final = 256 * 1024
"""The longest line that Loki accepts by default. Each of some templates could double a line."""
_TOO_LONG: Final = (
    f"line_format or label_format makes a text of more than {_FILLED_BYTES_MAX} bytes:"
    " name fewer labels in it"
)


def _reduced(stage: Drop | Keep, inner: SqlStatement, *, keeps: bool) -> SqlStatement:
    key, value = SqlStatement("one.key"), SqlStatement("one.value")
    named = SqlStatement("list_contains(?::VARCHAR[], one.key)", (list(stage.names),))
    parts = [named]
    for one in stage.matchers:
        matched = _matcher_sql(one, value)
        parts.append(compose("{0} = {1} AND {2}", key, _text(one.name), matched))
    chosen = any_condition(parts)
    text = f"list_filter(map_entries(labels), lambda one: {'' if keeps else 'NOT '}{chosen.text})"
    return over(f"* REPLACE (map_from_entries({text}) AS labels)", inner, values=chosen.values)


_IS_NUMBER: Final = f"regexp_full_match({{0}}, '{NUMBER_PATTERN}')"
_IS_DURATION: Final = (
    "regexp_full_match({0}, '[+-]?(?:(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:ns|us|µs|μs|ms|s|m|h))+"
    "|[+-]?0')"
)
_DURATION_NS: Final = (
    "CASE WHEN starts_with({0}, '-') THEN -1 ELSE 1 END * coalesce(list_sum(list_transform("
    "regexp_extract_all({0}, '[0-9.]+[a-zµμ]+'), lambda one:"
    " CAST(regexp_extract(one, '[0-9.]+') AS DOUBLE) * CASE regexp_extract(one, '[a-zµμ]+')"
    " WHEN 'ns' THEN 1 WHEN 'us' THEN 1e3 WHEN 'µs' THEN 1e3 WHEN 'μs' THEN 1e3 WHEN 'ms' THEN 1e6"
    " WHEN 's' THEN 1e9 WHEN 'm' THEN 6e10 ELSE 3.6e12 END)), 0)"
)
_IS_SIZE: Final = "regexp_full_match({0}, '(?i)(?:[0-9]+[.]?[0-9]*|[.][0-9]+) ?(?:[kmgtpe]?i?b?)')"
_SIZE: Final = (
    "floor(CAST(regexp_extract({0}, '[0-9.]+') AS DOUBLE) * CASE"
    " WHEN regexp_matches({0}, '(?i)i') THEN 1024.0 ELSE 1000.0 END **"
    " coalesce(list_position(['k', 'm', 'g', 't', 'p', 'e'],"
    " lower(regexp_extract({0}, '(?i)[kmgtpe]'))), 0))"
)


def number_of(text: str, unit: Unit) -> str:
    """Return the number that a text is, in ns for a duration; NULL for another text."""
    if unit is Unit.NUMBER:
        is_one, number = _IS_NUMBER, "TRY_CAST({0} AS DOUBLE)"
    elif unit is Unit.DURATION:
        is_one, number = _IS_DURATION, _DURATION_NS
    else:
        is_one, number = _IS_SIZE, _SIZE
    return f"CASE WHEN {is_one} THEN {number} END".replace("{0}", text)


@dataclass(frozen=True, slots=True)
class _Tested:
    """Whether a record passes a condition, and whether it then has an error, new or earlier."""

    passes: SqlStatement
    error: SqlStatement


def _filtered(condition: LabelCondition, inner: SqlStatement) -> SqlStatement:
    """Return the select of the records that meet a condition.

    A text that is not the number to compare sets an error and passes, as everything passes a
    comparison after an error.
    """
    compared = _comparisons(condition)
    if not compared:
        return over("*", inner, where=_plain_condition(condition))
    values = ", ".join(f"coalesce(labels[?], '') AS value_{at}" for at, _ in enumerate(compared))
    listed = over(f"*, {values}", inner, values=[one.name for one in compared])
    numbers = ", ".join(
        f"{number_of(f'value_{at}', one.unit)} AS number_{at}" for at, one in enumerate(compared)
    )
    listed = over(f"*, coalesce(labels['{ERROR}'], '') <> '' AS has_error, {numbers}", listed)
    places = {id(one): at for at, one in enumerate(compared)}
    tested = _test(condition, places, SqlStatement("has_error"))
    made = ", ".join(f"value_{at}, number_{at}" for at, _ in enumerate(compared))
    changed = compose(
        f"CASE WHEN {{0}} AND NOT has_error THEN map_concat(labels, MAP {{'{ERROR}':"
        f" 'LabelFilterErr', '{DETAILS}': 'the label is not a number of its form'}})"
        " ELSE labels END",
        tested.error,
    )
    return over(
        f"* EXCLUDE (has_error, {made}) REPLACE ({changed.text} AS labels)",
        listed,
        where=tested.passes,
        values=changed.values,
    )


def _plain_condition(condition: LabelCondition) -> SqlStatement:
    if isinstance(condition, Both | Either):
        word = "AND" if isinstance(condition, Both) else "OR"
        sides = _plain_condition(condition.left), _plain_condition(condition.right)
        return compose(f"({{0}} {word} {{1}})", *sides)
    if isinstance(condition, Comparison):
        raise TypeError(condition)
    return _matcher_sql(condition, _value(condition.name))


def _test(condition: LabelCondition, places: dict[int, int], error: SqlStatement) -> _Tested:
    match condition:
        case Matcher():
            return _Tested(_matcher_sql(condition, _value(condition.name)), error)
        case Comparison():
            at = places[id(condition)]
            factor = 10**9 if condition.unit is Unit.DURATION else 1
            limit = float(condition.value * Decimal(factor))
            operator = "=" if condition.operator.value == "==" else condition.operator.value
            passes = compose(
                f"({{0}} OR (value_{at} <> '' AND coalesce(number_{at} {operator} ?, true)))", error
            )
            wrong = compose(f"({{0}} OR (value_{at} <> '' AND number_{at} IS NULL))", error)
            return _Tested(SqlStatement(passes.text, (*passes.values, limit)), wrong)
        case Both():
            left = _test(condition.left, places, error)
            right = _test(condition.right, places, left.error)
            after = compose(
                "CASE WHEN {0} THEN {1} ELSE {2} END", left.passes, right.error, left.error
            )
            return _Tested(compose("({0} AND {1})", left.passes, right.passes), after)
        case Either():
            left = _test(condition.left, places, error)
            right = _test(condition.right, places, left.error)
            after = compose(
                "CASE WHEN {0} THEN {1} ELSE {2} END", left.passes, left.error, right.error
            )
            return _Tested(compose("({0} OR {1})", left.passes, right.passes), after)
        case _:
            assert_never(condition)


def _parsed(
    stage: JsonParser | LogfmtParser | PatternParser | RegexpParser,
    inner: SqlStatement,
    wanted: Wanted,
) -> SqlStatement:
    """Return the select in which the labels of a parser are added."""
    names: list[str] | None = None
    error: tuple[str, str] | None = None
    if wanted is not None:
        names = sorted((wanted | {one.removesuffix(_SUFFIX) for one in wanted}) - ERRORS)
    match stage:
        case JsonParser():
            listed = _json_entries(stage, inner)
            error = _JSON_ERROR
        case LogfmtParser():
            listed = _logfmt_entries(stage, inner)
            error = _LOGFMT_ERROR
        case PatternParser() | RegexpParser():
            listed = _captured_entries(stage, inner)
        case _:
            assert_never(stage)
    if names is not None:
        kept = "list_filter(entries, lambda one: list_contains(?::VARCHAR[], one.k))"
        listed = over(f"* REPLACE ({kept} AS entries)", listed, values=[list(names)])
    renamed = (
        "list_transform(entries, lambda one: struct_pack(k := CASE WHEN own_labels[one.k] IS NULL"
        f" THEN one.k ELSE one.k || '{_SUFFIX}' END, v := one.v))"
    )
    keyed = _with_keys(over(f"* REPLACE ({renamed} AS entries)", listed))
    labels = f"map_concat(labels, {_distinct_map()})"
    if error is not None:
        labels = _or_error("parsed IS NULL", error, labels)
    return over(f"* EXCLUDE (entries, keys, parsed) REPLACE ({labels} AS labels)", keyed)


_JSON_ERROR: Final = ("JSONParserErr", "the line is not a JSON object")
_LOGFMT_ERROR: Final = ("LogfmtParserErr", "the line is not logfmt")
_PARSED: Final = (
    "CASE WHEN starts_with(ltrim(line, E' \\t\\n\\r'), '{') AND json_valid(line) THEN line END"
)
"""The line if it is a JSON object; other values do not begin with a brace."""
_POINTER: Final = "'/' || replace(replace({0}, '~', '~0'), '/', '~1')"
_SCALAR: Final = "json_type({0}) NOT IN ('OBJECT', 'ARRAY', 'NULL')"


def _json_entries(stage: JsonParser, inner: SqlStatement) -> SqlStatement:
    """Return the select with the members of the line, in `entries`; `parsed` is NULL for others."""
    parsed = over(f"*, {_PARSED} AS parsed", inner)
    if stage.extractions:
        pointers = [_pointer_of(one.path) for one in stage.extractions]
        found = over("*, json_extract_string(parsed, ?) AS found", parsed, values=[pointers])
        pairs = [
            compose(f"struct_pack(k := {{0}}, v := found[{at}])", _text(one.label))
            for at, one in enumerate(stage.extractions, 1)
        ]
        return _listed(pairs, found)
    found = over(f"*, {_flattened('parsed')} AS flat", parsed)
    entries = "list_filter(flat, lambda one: one.own) || list_filter(flat, lambda one: NOT one.own)"
    return over(f"* EXCLUDE (flat), {entries} AS entries", found)


def _json_members(inner: SqlStatement, wanted: list[str]) -> SqlStatement:
    """Return the select in which some members of the line are labels.

    A label without `_` is the member of that name. Another one may be inside of other members, or
    have a key with other characters; then every member is read, if the line contains its parts.
    """
    parsed = over(f"*, {_PARSED} AS parsed", inner)
    names = sorted({*wanted, *(one.removesuffix(_SUFFIX) for one in wanted)})
    paths = [f'$."{one}"' for one in names]
    found = over("*, json_extract_string(parsed, ?) AS found", parsed, values=[paths])
    needs = [_may_be_deeper(name, at) for at, name in enumerate(names, 1) if "_" in name]
    need = any_condition(needs)
    flat = f"CASE WHEN {need.text} THEN {_flattened('parsed')} END" if needs else "NULL"
    found = over(f"*, {flat} AS flat", found, values=need.values)
    members: dict[str, SqlStatement] = {}
    for at, (name, path) in enumerate(zip(names, paths, strict=True), 1):
        own = (
            f"CASE WHEN found[{at}][1] IN ('{{', '[') AND json_type(parsed, ?) <> 'VARCHAR'"
            f" THEN NULL ELSE found[{at}] END"
        )
        members[name] = SqlStatement(own, (path,))
        if "_" in name:
            other = SqlStatement("list_filter(flat, lambda one: one.k = ?)[1].v", (name,))
            members[name] = compose("coalesce({0}, {1})", members[name], other)
    pairs = []
    for name in wanted:
        given = _text(name)
        value = compose("CASE WHEN own_labels[{0}] IS NULL THEN {1} END", given, members[name])
        if name.endswith(_SUFFIX):
            base = name.removesuffix(_SUFFIX)
            value = compose(
                "CASE WHEN own_labels[{0}] IS NOT NULL THEN {1} ELSE {2} END",
                _text(base),
                members[base],
                value,
            )
        pairs.append((name, value))
    labels = _with_members(pairs, _JSON_ERROR)
    return over(
        f"* EXCLUDE (parsed, found, flat) REPLACE ({labels.text} AS labels)",
        found,
        values=labels.values,
    )


def _with_members(
    pairs: Sequence[tuple[str, SqlStatement]], error: tuple[str, str]
) -> SqlStatement:
    """Return the map of the labels that later stages need, with values of members.

    A label whose member is NULL or empty keeps its value. The map is built rather than extended,
    which is three times as fast.
    """
    kept = [
        (name, compose("coalesce(nullif({0}, ''), labels[{1}])", value, _text(name)))
        for name, value in pairs
    ]
    for name, value in zip((ERROR, DETAILS), error, strict=True):
        text = f"CASE WHEN parsed IS NULL THEN '{value}' ELSE labels['{name}'] END"
        kept.append((name, SqlStatement(text)))
    return _map_of(kept)


def _may_be_deeper(name: str, at: int) -> SqlStatement:
    """Return the condition that a label may be another member than the one of its name."""
    parts = [SqlStatement("contains(parsed, ?)", (one,)) for one in name.split("_") if one]
    has_parts = all_conditions(parts) if parts else SqlStatement("true")
    escaped = r"contains(parsed, '\u')"
    return compose(
        f"((found[{at}] IS NULL OR found[{at}][1] IN ('{{', '[')) AND (({{0}}) OR {escaped}))",
        has_parts,
    )


def _or_error(is_wrong: str, error: tuple[str, str], labels: str) -> str:
    """Return the labels after a parser, or those before with an error."""
    name, details = error
    failed = f"map_concat(labels, MAP {{'{ERROR}': '{name}', '{DETAILS}': '{details}'}})"
    return f"CASE WHEN {is_wrong} THEN {failed} ELSE {labels} END"


def _listed(
    pairs: Sequence[SqlStatement], inner: SqlStatement, without: Sequence[str] = ("found",)
) -> SqlStatement:
    """Return the select with entries; those whose value is NULL or empty are left out."""
    text = ", ".join(one.text for one in pairs)
    excluded = f" EXCLUDE ({', '.join(without)})" if without else ""
    return over(
        f"*{excluded}, list_filter([{text}], lambda one: one.v <> '') AS entries",
        inner,
        values=[value for one in pairs for value in one.values],
    )


def _pointer_of(path: str) -> str:
    parts = [str(one).replace("~", "~0").replace("/", "~1") for one in parse_path(path)]
    return "".join(f"/{one}" for one in parts)


def _flattened(column: str) -> str:
    """Return the list of the members of an object, those of objects in it under joined names.

    `own` marks the members of the object itself whose key is a label already.
    """
    pointer = _POINTER.replace("{0}", "key")
    found = (
        f"list_transform(json_keys({column}), lambda key: struct_pack(k := {sanitized('key')},"
        f" v := json_extract({column}, {pointer}),"
        " own := regexp_full_match(key, '[A-Za-z_][A-Za-z0-9_]*')))"
    )
    inner = (
        "list_transform(json_keys(one.v), lambda key: struct_pack("
        "k := one.k || '_' || regexp_replace(key, '[^A-Za-z0-9_]', '_', 'g'),"
        f" v := json_extract(one.v, {pointer}), own := false))"
    )
    for _ in range(_DEPTH):
        found = (
            f"flatten(list_transform({found}, lambda one: CASE WHEN json_type(one.v) = 'OBJECT'"
            f" THEN {inner} ELSE [one] END))"
        )
    scalars = f"list_filter({found}, lambda one: {_SCALAR.replace('{0}', 'one.v')} AND one.k <> '')"
    return (
        f"list_transform({scalars}, lambda one:"
        " struct_pack(k := one.k, v := json_extract_string(one.v, '$'), own := one.own))"
    )


_PAIR: Final = r'([^\s="]+)(?:=("(?:[^"\\]|\\.)*"|[^\s"=]*))?'
_TOKEN: Final = rf"(?:{_PAIR}|\S*)(?:\s+|$)"
"""A pair, or else the text up to the next space, which is not one."""


def _has_fast_form(stage: LogfmtParser, wanted: frozenset[str]) -> bool:
    """Return whether `_logfmt_members` computes the labels of a parser."""
    is_plain = not (stage.extractions or stage.is_strict or stage.keeps_empty)
    return bool(wanted and is_plain) and all(
        re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", one) and not one.endswith(_SUFFIX) for one in wanted
    )


def _logfmt_members(stage: LogfmtParser, inner: SqlStatement, wanted: list[str]) -> SqlStatement:
    """Return the select in which some pairs of the line are labels.

    The value of a label is the text after ` name=` if only pairs precede it, no later pair has the
    label, and the value has no escapes. All pairs of other lines are read.
    """
    found = over("*, ' ' || line AS padded", inner)
    places = ", ".join(f"strpos(padded, ' {one}=') AS at_{nr}" for nr, one in enumerate(wanted))
    found = over(f"*, {places}", found)
    rests = ", ".join(
        f"CASE WHEN at_{nr} > 0 THEN substr(padded, at_{nr} + {len(one) + 2}) END AS rest_{nr}"
        for nr, one in enumerate(wanted)
    )
    found = over(f"*, {rests}", found)
    texts = ", ".join(
        f"CASE WHEN starts_with(rest_{nr}, '\"') THEN split_part(substr(rest_{nr}, 2), '\"', 1)"
        f" ELSE split_part(rest_{nr}, ' ', 1) END AS text_{nr}"
        for nr, _ in enumerate(wanted)
    )
    found = over(f"*, {texts}", found)
    hard = " OR ".join(f"({_is_hard(one, nr)})" for nr, one in enumerate(wanted))
    found = over(f"*, CASE WHEN {hard} THEN line END AS hard", found)
    found = _logfmt_entries(stage, found, "hard")
    pairs = [
        (
            name,
            SqlStatement(
                f"CASE WHEN own_labels[?] IS NOT NULL THEN NULL WHEN hard IS NULL THEN text_{nr}"
                " ELSE list_filter(entries, lambda one: one.k = ?)[1].v END",
                (name, name),
            ),
        )
        for nr, name in enumerate(wanted)
    ]
    labels = _with_members(pairs, _LOGFMT_ERROR)
    made = "".join(f", at_{nr}, rest_{nr}, text_{nr}" for nr, _ in enumerate(wanted))
    return over(
        f"* EXCLUDE (padded, parsed, hard, entries{made}) REPLACE ({labels.text} AS labels)",
        found,
        values=labels.values,
    )


def _is_hard(name: str, nr: int) -> str:
    """Return the condition that the value of a label may differ from the text after its name."""
    has_digit = re.match("_[0-9]", name) is not None
    key = name[has_digit:].replace("_", r'[^A-Za-z0-9\s="]')
    if has_digit:
        key = r'[^A-Za-z0-9\s="]?' + key
    rest, text = f"rest_{nr}", f"text_{nr}"
    return (
        rf"CASE WHEN at_{nr} = 0 THEN regexp_matches(padded, '\s{key}=')"
        rf" WHEN {text} = '' OR regexp_matches({rest}, '\s{key}=') THEN true"
        f" WHEN starts_with({rest}, '\"') AND (contains({text}, '\\')"
        f" OR substr({rest}, length({text}) + 2, 1) <> '\"'"
        f" OR substr({rest}, length({text}) + 3, 1) NOT IN ('', ' ')) THEN true"
        rf""" WHEN NOT starts_with({rest}, '"') AND regexp_matches({text}, '[\s="]') THEN true"""
        rf" ELSE NOT regexp_full_match(left(padded, at_{nr}), '\s*(?:{_PAIR}\s+)*') END"
    )


def _logfmt_entries(stage: LogfmtParser, inner: SqlStatement, read: str = "line") -> SqlStatement:
    """Return the select with the pairs of a column, in `entries`; the last of a name counts."""
    is_right = rf"regexp_full_match(line, '\s*(?:{_PAIR}(?:\s+|$))*')"
    parsed = f"CASE WHEN {is_right} THEN line END" if stage.is_strict else "line"
    tokens = over(
        f"*, {parsed} AS parsed, regexp_extract_all({read}, '{_TOKEN}', 1) AS names,"
        f" regexp_extract_all({read}, '{_TOKEN}', 2) AS texts",
        inner,
    )
    unquoted = (
        "CASE WHEN NOT starts_with(texts[nr], '\"') THEN texts[nr]"
        " WHEN contains(texts[nr], '\\') THEN coalesce(try(json_extract_string(texts[nr], '$')),"
        " substr(texts[nr], 2, length(texts[nr]) - 2))"
        " ELSE substr(texts[nr], 2, length(texts[nr]) - 2) END"
    )
    listed = over(
        "* EXCLUDE (names, texts), list_reverse(list_filter(list_transform("
        "range(1, len(names) + 1), lambda nr: struct_pack("
        f"k := {sanitized('names[nr]')}, v := coalesce({unquoted}, ''), key := names[nr])),"
        " lambda one: one.k <> '')) AS entries",
        tokens,
    )
    if not stage.extractions:
        return _without_empty(listed, keeps_empty=stage.keeps_empty)
    pairs = [
        compose(
            "struct_pack(k := {0}, v := list_filter(entries, lambda one: one.key = {1})[1].v)",
            _text(one.label),
            _text(one.path),
        )
        for one in stage.extractions
    ]
    return _listed(pairs, listed, without=("entries",))


def _without_empty(listed: SqlStatement, *, keeps_empty: bool) -> SqlStatement:
    if keeps_empty:
        return listed
    return over("* REPLACE (list_filter(entries, lambda one: one.v <> '') AS entries)", listed)


_GROUP: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]|\(\?P?<([A-Za-z_]\w*)>|\((?!\?)",
    re.DOTALL,
)
"""What may contain a parenthesis that begins no group, and the beginnings of groups."""


def _captured_entries(stage: PatternParser | RegexpParser, inner: SqlStatement) -> SqlStatement:
    """Return the select with what the groups of a pattern match, in `entries`."""
    if isinstance(stage, PatternParser):
        pattern, names = _capturing(stage.pattern)
    else:
        pattern = stage.pattern
        groups = [one for one in _GROUP.finditer(pattern) if one[0].startswith("(")]
        names = [one[1] or "_" for one in groups]
    columns = ", ".join(f"'group_{at}'" for at, _ in enumerate(names))
    found = over(f"*, regexp_extract(line, ?, [{columns}]) AS parsed", inner, values=[pattern])
    pairs = [
        compose(f"struct_pack(k := {{0}}, v := parsed.group_{at})", _text(name))
        for at, name in enumerate(names)
        if name != "_"
    ]
    return _listed(pairs, found, without=())


def _capturing(text: str) -> tuple[str, list[str]]:
    """Return the RE2 pattern of a line pattern, and the names of its captures.

    A capture ends at the first occurrence of the text after it; if there is none, it is the rest of
    the line, and the captures after it are not set.
    """
    pattern, closed = "^", ""
    names: list[str] = []
    for part in parse_line_pattern(text):
        if isinstance(part, str):
            pattern += _quoted(part) if not names else f"(?:{_quoted(part)}"
            closed += "|$)" if names else ""
        else:
            names.append(part.name)
            pattern += "((?s:.*?))"
    if names and pattern.endswith("((?s:.*?))"):
        pattern = pattern.removesuffix("((?s:.*?))") + "((?s:.*))"
    return pattern + closed, names
