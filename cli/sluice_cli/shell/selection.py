"""The records that a LogQL text selects, as parameters of a query.

Selectors, line filters and label filters become conditions. A label is the field that it names, see
`field_names`. What computes something from records is refused by name.
"""

import re
from collections.abc import Iterator
from typing import Final

from sluice_cli.shell.asking import Ask, Given
from sluice_cli.shell.field_names import find_field
from sluice_protocol.errors import BadUsage
from sluice_protocol.fields import KINDS, Kind
from sluice_query.logql.expressions import (
    Both,
    CompareOperator,
    Comparison,
    LabelCondition,
    LabelFilter,
    LineFilter,
    LineOperator,
    LogQuery,
    Matcher,
    MatchOperator,
    Unit,
)
from sluice_query.logql.grammar import parse_logql
from sluice_query.request import RecordField

_NS_PER_S: Final = 10**9


async def select_records(
    ask: Ask, text: str, kind: Kind, given: Given
) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Return the conditions of a LogQL text, and the hint for each label that no record has.

    `given` has the time range in which labels are looked up, and a text if another one is searched.
    """
    query = parse_logql(text)
    if not isinstance(query, LogQuery):
        raise BadUsage(
            "cannot compute from records here: write a selector, line filters and label filters;"
            " --plot counts records over time, and `sluice metrics` computes rates"
        )
    conditions: list[Matcher | Comparison] = [*query.matchers]
    found: dict[str, list[str]] = {}
    filters: list[str] = []
    hints: list[str] = []
    compared: set[str] = set()
    for stage in query.stages:
        if isinstance(stage, LineFilter):
            # The index is searched for one text; others are compared in what it leaves.
            is_text = stage.operator is LineOperator.CONTAINS and stage.values[1:] == ()
            if is_text and stage.values[0] and "q" not in {*given, *found}:
                found["q"] = [stage.values[0]]
            else:
                filters.append(_line_filter(stage, kind))
        elif isinstance(stage, LabelFilter):
            conditions += _parts(stage.condition)
        else:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(stage).__name__).lower()
            raise BadUsage(
                "cannot change records here: write a selector, line filters and label filters only,"
                f" stage=`{name.removesuffix('_parser')}`"
            )
    span = {name: values for name, values in given.items() if name in {"from", "to"}}
    for one in conditions:
        field, hint = await _field_of(ask, one.name, kind, span)
        hints += hint
        # Several `=` of one field would be alternatives.
        filters += _label_filters(field, one, plain=field not in compared)
        compared.add(field)
    return ({**found, "filter": filters} if filters else found), tuple(hints)


async def _field_of(ask: Ask, label: str, kind: Kind, span: Given) -> tuple[str, list[str]]:
    """Return the field of a label; of one that no record has, an attribute, and a hint."""
    try:
        return await find_field(ask, label, kind, span), []
    except BadUsage as error:
        return RecordField("attributes", label).name, [str(error)]


def _line_filter(one: LineFilter, kind: Kind) -> str:
    column = KINDS[kind].searched
    if column is None:
        raise BadUsage(f"{kind} are opaque bytes: omit the line filter, operator=`{one.operator}`")
    if one.operator in {LineOperator.PATTERN, LineOperator.PATTERN_NOT}:
        raise BadUsage(f"use |= or |~ instead of this line filter, operator=`{one.operator}`")
    is_pattern = one.operator in {LineOperator.MATCHES, LineOperator.MATCHES_NOT}
    texts = one.values if is_pattern else [_quoted(text) for text in one.values]
    pattern = "|".join(f"(?:{text})" for text in texts) if len(texts) > 1 else texts[0]
    return f"{column}{'!~' if one.operator.is_negative else '=~'}{pattern}"


def _parts(condition: LabelCondition) -> Iterator[Matcher | Comparison]:
    if isinstance(condition, Both):
        yield from _parts(condition.left)
        yield from _parts(condition.right)
    elif isinstance(condition, Matcher | Comparison):
        yield condition
    else:
        raise BadUsage("use a pattern instead of `or`, as in level=~`warn|error`, word=`or`")


def _label_filters(field: str, one: Matcher | Comparison, *, plain: bool) -> list[str]:
    """Return the conditions of one label; a label that a record does not have is the empty text."""
    if isinstance(one, Comparison):
        return _comparison(field, one)
    is_pattern = one.operator in {MatchOperator.MATCHES, MatchOperator.MATCHES_NOT}
    is_negative = one.operator in {MatchOperator.UNEQUAL, MatchOperator.MATCHES_NOT}
    if is_pattern:
        positive, negative = f"=~^(?:{one.value})$", f"!~^(?:{one.value})$"
    else:
        positive = f"={one.value}" if plain else f"=~^(?:{_quoted(one.value)})$"
        negative = f"!={one.value}"
    if not _matches_empty(one.value if is_pattern else re.escape(one.value)):
        return [f"{field}{negative if is_negative else positive}"]
    # It matches the empty text, which is the value of a label that a record does not have.
    if is_negative:
        return [field, f"{field}{negative}"]
    if not one.value:
        return [f"!{field}"]
    raise BadUsage(f"write a pattern that does not match an empty text, label=`{one.name}`")


def _comparison(field: str, one: Comparison) -> list[str]:
    value = one.value
    if one.unit is Unit.DURATION:
        value *= _NS_PER_S if field.endswith("_ns") else 1
    shown = f"{value.normalize():f}"
    if one.operator is CompareOperator.EQUAL:
        return [f"{field}>={shown}", f"{field}<={shown}"]
    if one.operator is CompareOperator.UNEQUAL:
        raise BadUsage(f"use < or > instead of != with a number, label=`{one.name}`")
    return [f"{field}{one.operator}{shown}"]


def _matches_empty(pattern: str) -> bool:
    try:
        return re.fullmatch(pattern, "") is not None
    except re.error:  # RE2 decides about it
        return False


def _quoted(text: str) -> str:
    """Return the RE2 pattern of a text: every ASCII character but words and spaces is escaped."""
    return re.sub(r"[!-/:-@\[-^`{-~]", r"\\\g<0>", text)
