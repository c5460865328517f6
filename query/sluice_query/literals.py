"""What a question's text must contain letter by letter, so that an index can be asked for it."""

import re
from typing import Final

from sluice_query.request import Query

_UNSURE: Final = re.compile(r"\||\(\?|\\Q|\\[pPxCoO0-9]")
"""With alternatives, flags, quotes or numbered characters a pattern is not looked into."""
_TOKEN: Final = re.compile(
    r"(?P<set>\[\^?\]?(?:\\.|\[:\w+:\]|[^\]\\])*\])"
    r"|(?P<count>[*+?]|\{\d*(?:,\d*)?\})"
    r"|\\(?P<escaped>[^\w\s])"
    r"|(?P<other>\\.|[()^$.\n])"
    r"|(?P<plain>.)",
    re.DOTALL,
)


def required_texts(query: Query) -> tuple[str, ...]:
    """Gives texts that every match of the query's text has in it; none where that is not sure."""
    if query.text is None or query.ignore_case:
        return ()
    return literals_of(query.text) if query.regex else (query.text,)


def literals_of(pattern: str) -> tuple[str, ...]:
    """Gives the runs of plain characters that every match of an RE2 pattern contains.

    It is cautious: what stands in a group, in a set, or before a count is left out.
    """
    if _UNSURE.search(pattern):
        return ()
    runs: list[str] = [""]
    depth = 0
    for token in _TOKEN.finditer(pattern):
        letter = token["plain"] or token["escaped"]
        depth += {"(": 1, ")": -1}.get(token["other"] or "", 0)
        if token["count"]:
            # What is counted may be there not at all; a run before it stays without its last one.
            runs[-1] = runs[-1][:-1]
            runs.append("")
        elif letter is not None and depth == 0:
            runs[-1] += letter
        else:
            runs.append("")
    return tuple(run for run in runs if run)
