"""The records before and after one record, in the order of its agent and boot."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from sluice_query.engine import QueryEngine
from sluice_query.request import Query
from sluice_query.sql import RecordSources, returned_columns, select_sql
from sluice_query.statements import SqlStatement
from sluice_query.views import Neighbourhood

NEIGHBOURS_DEFAULT: Final = 10
NEIGHBOURS_MAX: Final = 1_000
_WINDOW_FIRST: Final = 1_000
_WINDOW_GROWTH: Final = 32
_SEQ_MAX: Final = (1 << 63) - 1

_Row = tuple[object, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceWindow:
    """A range of sequence numbers, both ends inclusive."""

    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowSources:
    """The sources of the records of a window.

    Attributes:
        sources: Files that may contain records of the window, and the pending batches.
        earlier_left: Whether other files may contain records before the window.
        later_left: Whether other files may contain records after the window.
    """

    sources: RecordSources
    earlier_left: bool
    later_left: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNeighbours:
    """The rows of a record and of its neighbours, by the returned columns.

    Attributes:
        before: Those before it, in order; one more than wanted if there are more.
        record: The record itself, or None.
        after: Those after it, in order; one more than wanted if there are more.
    """

    before: list[_Row]
    record: _Row | None
    after: list[_Row]


def windows(around: Neighbourhood) -> Iterator[SequenceWindow]:
    """Yield growing ranges of sequence numbers around a record; the last contains all of them."""
    reach = _WINDOW_FIRST + 2 * max(around.before, around.after)
    while reach < _SEQ_MAX:
        first, last = max(around.seq - reach, 0), min(around.seq + reach, _SEQ_MAX)
        yield SequenceWindow(first=first, last=last)
        reach *= _WINDOW_GROWTH
    yield SequenceWindow(first=0, last=_SEQ_MAX)


def neighbours_sql(
    query: Query, sources: RecordSources, window: SequenceWindow, *, descending: bool, limit: int
) -> SqlStatement:
    """Return the statement for a query's records of a window, in the order of their sequence."""
    columns = ", ".join(returned_columns(query.kind))
    inner = select_sql(query, SqlStatement(columns), sources)
    order = "DESC" if descending else "ASC"
    return SqlStatement(
        f"SELECT {columns} FROM ({inner.text}) WHERE seq BETWEEN ? AND ?"  # noqa: S608 - constants
        f" ORDER BY seq {order} LIMIT ?",
        (*inner.values, window.first, window.last, limit),
    )


def find_neighbours(
    engine: QueryEngine,
    query: Query,
    around: Neighbourhood,
    open_sources: Callable[[SequenceWindow], "WindowSources"],
) -> FoundNeighbours:
    """Return a record and its neighbours, reading as few files as possible.

    Args:
        engine: The engine.
        query: The query.
        around: The record, and how many neighbours are wanted.
        open_sources: Registers the files that may contain records of a window.
    """
    found = FoundNeighbours(before=[], record=None, after=[])
    for window in windows(around):
        opened = open_sources(window)
        if opened.sources.names:
            found = _read(engine, query, around, window, opened)
        before_known = not opened.earlier_left or len(found.before) > around.before
        if before_known and (not opened.later_left or len(found.after) > around.after):
            break
    return found


def _read(
    engine: QueryEngine,
    query: Query,
    around: Neighbourhood,
    window: SequenceWindow,
    opened: WindowSources,
) -> FoundNeighbours:
    # Beyond the window, records of files that are not open may be closer.
    first = window.first if opened.earlier_left else 0
    last = window.last if opened.later_left else _SEQ_MAX
    up_to = SequenceWindow(first=first, last=around.seq)
    later = SequenceWindow(first=around.seq + 1, last=last)
    sources = opened.sources
    limit = around.before + 2  # the record, its neighbours, and one more
    rows = engine.rows(neighbours_sql(query, sources, up_to, descending=True, limit=limit))
    place = returned_columns(query.kind).index("seq")
    record = rows.pop(0) if rows and rows[0][place] == around.seq else None
    limit = around.after + 1
    after = engine.rows(neighbours_sql(query, sources, later, descending=False, limit=limit))
    return FoundNeighbours(before=rows[: around.before + 1][::-1], record=record, after=list(after))
