"""Texts that every match of a query contains, so that an index can be searched for them."""

import re
from typing import Final

from sluice_query.request import Query

_UNSURE: Final = re.compile(r"\||\(\?|\\Q|\\[pPxCoO0-9]")
"""A pattern with alternatives, flags, quotes or numbered characters is not analysed."""
_TOKEN: Final = re.compile(
    r"(?P<set>\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\])"
    r"|(?P<count>[*+?]|\{\d*(?:,\d*)?\})"
    r"|\\(?P<escaped>[^\w\s])"
    r"|(?P<other>\\.|[()^$.\n])"
    r"|(?P<plain>.)",
    re.DOTALL,
)


def required_texts(query: Query) -> tuple[str, ...]:
    """Return texts that every match of the query's text contains; none when that is not certain."""
    if query.text is None or query.ignore_case:
        return ()
    return literals_of(query.text) if query.regex else (query.text,)


def literals_of(pattern: str) -> tuple[str, ...]:
    """Return the sequences of plain characters that every match of an RE2 pattern contains.

    Characters in a group, in a set, or before a repetition count are left out.
    """
    if _UNSURE.search(pattern):
        return ()
    runs: list[str] = [""]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        letter = token["plain"] or token["escaped"]
        depth += {"(": 1, ")": -1}.get(token["other"] or "", 0)
        if token["count"]:
            # A counted character may occur zero times, so it ends the run without being part of it.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif letter is not None and depth == 0:
            runs[-1] += letter
        else:
            runs.append("")
    return tuple(run for run in runs if run)
