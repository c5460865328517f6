"""The texts that a line must contain to pass the filters of lines, for the look-up in the index.

Each group has alternatives: every line that passes contains one of them, in upper or lower case.
What is not certain is left out, which only makes the search read more files.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from sluice_query.logql.expressions import LineFilter, LineOperator

Groups = tuple[tuple[str, ...], ...]

_UNSURE: Final = re.compile(r"\(\?(?!:|P?<)|\\Q|\\[pPxCoO0-9]")
"""Flags within a pattern, quotes and numbered characters are not analysed."""
_FLAGS: Final = re.compile(r"\(\?([imsU]+)\)")
_TOKEN: Final = re.compile(
    r"(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])"
    r"|(?P<count>[*+?]|\{\d*(?:,\d*)?\})"
    r"|\\(?P<escaped>[^\w\s])"
    r"|(?P<open>\((?:\?(?::|P?<\w+>))?)"
    r"|(?P<other>\\.|[)|^$.\n])"
    r"|(?P<plain>.)",
    re.DOTALL,
)
_OTHER_CASES: Final = re.compile("[^\x00-\x7f]+|[kKsS]")
"""Characters whose other case is no ASCII character: `k` also matches the sign of Kelvin."""
ALTERNATIVES_MAX: Final = 64
PARENTHESES_MAX: Final = 50
"""Each pair of them inside of another is one more call of a function."""


def required_texts(filters: Iterable[LineFilter]) -> Groups:
    """Return the groups of texts of which a line has one each if it passes all filters."""
    return tuple(group for one in filters for group in _of_filter(one))


def _of_filter(one: LineFilter) -> Groups:
    found: list[Groups]
    match one.operator:
        case LineOperator.CONTAINS:
            found = [((text,),) if text else () for text in one.values]
        case LineOperator.MATCHES:
            found = [pattern_texts(pattern) for pattern in one.values]
        case LineOperator.PATTERN:
            parts = [text.split("<_>") for text in one.values]
            found = [tuple((part,) for part in some if part) for some in parts]
        case _:
            return ()
    return _either(found)


def pattern_texts(pattern: str) -> Groups:
    """Return the groups of texts of which every match of an RE2 pattern contains one each.

    Characters in a set or before a repetition count are left out.
    """
    if pattern.count("(") > PARENTHESES_MAX:
        return ()
    flags = _FLAGS.match(pattern)
    body = pattern[flags.end() :] if flags else pattern
    if _UNSURE.search(body):
        return ()
    groups, _ = _alternatives(_TOKEN.finditer(body))
    if flags is None or "i" not in flags[1]:
        return groups
    return tuple(
        folded for group in groups for folded in _either([_caseless(one) for one in group])
    )


def _caseless(text: str) -> Groups:
    return tuple((part,) for part in _OTHER_CASES.split(text) if part)


def _alternatives(tokens: Iterator[re.Match[str]]) -> tuple[Groups, re.Match[str] | None]:
    """Return the groups of alternatives up to the end of their parentheses.

    The second value is the token after these, which was read to see whether it is a count.
    """
    branches: list[list[tuple[str, ...]]] = [[]]
    run = ""
    token = next(tokens, None)
    while token is not None and token[0] != ")":
        following = next(tokens, None) if not token["open"] else None
        letter = token["plain"] or token["escaped"]
        if letter is not None and (following is None or not following["count"]):
            run += letter
            token = following
            continue
        branches[-1] += [(run,)] if run else []
        run = ""
        if token["open"]:
            inner, following = _alternatives(tokens)
            # What is counted may occur zero times.
            branches[-1] += inner if following is None or not following["count"] else ()
        elif token["other"] == "|":
            branches.append([])
        token = following
    branches[-1] += [(run,)] if run else []
    return _either([tuple(one) for one in branches]), next(tokens, None) if token else None


def _either(alternatives: Sequence[Groups]) -> Groups:
    """Return the groups for a line that has those of one alternative."""
    if len(alternatives) == 1:
        return alternatives[0]
    if not all(alternatives):
        return ()
    best = [max(groups, key=lambda group: min(map(len, group))) for groups in alternatives]
    joined = tuple(dict.fromkeys(text for group in best for text in group))
    return (joined,) if len(joined) <= ALTERNATIVES_MAX else ()
