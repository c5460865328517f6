"""The texts that a line must contain to pass the filters of lines, for the look-up in the index.

What is not certain is left out, which only makes the search read more.
"""

from collections.abc import Iterable

from sluice_query.literals import ALTERNATIVES_MAX, TextCondition, condition_of
from sluice_query.logql.expressions import LineFilter, LineOperator


def required_texts(filters: Iterable[LineFilter]) -> tuple[TextCondition, ...]:
    """Return the conditions that every line meets which passes all filters."""
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
