"""The ranges of a record's text that match a query, found by the engine's own matcher."""

from collections.abc import Sequence
from typing import Final

from sluice_query.engine import QueryEngine
from sluice_query.request import Query
from sluice_query.result import HIGHLIGHTS, Row
from sluice_query.sql import SEARCHED, SqlStatement

RANGES_MAX: Final = 100
_START: Final = "\ue0f5"
_END: Final = "\ue0f6"
"""Characters for private use; a text that contains one is not highlighted."""
_ABOVE_BMP: Final = 0xFFFF


def add_highlights(engine: QueryEngine, query: Query, records: Sequence[Row]) -> None:
    """Add the matching ranges to records, under the name `highlights`."""
    if query.text is None or not records:
        return
    column = SEARCHED[query.kind]
    texts = [str(row[column]) for row in records]
    marked = [str(found) for (found,) in engine.rows(_marking_sql(query, query.text, texts))]
    for row, text, with_marks in zip(records, texts, marked, strict=True):
        hidden = _START in text or _END in text
        row[HIGHLIGHTS] = [] if hidden else marked_ranges(with_marks)


def _marking_sql(query: Query, text: str, texts: list[str]) -> SqlStatement:
    options = "g" + ("" if query.regex else "l") + ("i" if query.ignore_case else "")
    return SqlStatement(
        f"SELECT regexp_replace(found, ?, '{_START}\\0{_END}', '{options}')"  # noqa: S608 - constants
        " FROM (SELECT unnest(?) AS found)",
        (text, texts),
    )


def marked_ranges(marked: str) -> list[tuple[int, int]]:
    """Return the ranges between marks, in UTF-16 code units of the text without the marks.

    Empty ranges are left out. At most `RANGES_MAX` are returned.
    """
    ranges: list[tuple[int, int]] = []
    place = start = 0
    for letter in marked:
        if letter == _START:
            start = place
        elif letter == _END:
            if place > start:
                ranges.append((start, place))
            if len(ranges) == RANGES_MAX:
                break
        else:
            place += 2 if ord(letter) > _ABOVE_BMP else 1
    return ranges
