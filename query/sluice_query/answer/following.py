"""Following by polling: the same query repeated, each time returning only new records.

Each query covers a window of record time that reaches into the past, so that a batch that arrives
late is found too.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from sluice_protocol.errors import SluiceError, retryable
from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.answer.result import QueryResult, QuerySummary, Row
from sluice_query.question.request import LIMIT_MAX, Query
from sluice_query.search import Searcher

INTERVAL_S: Final = 1.0
WINDOW_NS: Final = 300 * NS_PER_S
"""A follower misses a record that arrives later than this after its own time."""
AHEAD_NS: Final = 60 * NS_PER_S
"""How far agents' clocks may be ahead."""

_RecordKey = tuple[object, ...]


async def follow(searcher: Searcher, query: Query) -> AsyncIterator[QueryResult]:
    """Yield the latest records of a query, then new records, without an end.

    The end of the query's time range is ignored. An error of the first query is raised; a later one
    that may succeed again is repeated, and the results state it.
    """
    seen: set[_RecordKey] = set()
    started = False
    searcher = replace(searcher, lists_accepted=False)
    from_ns, limit = query.from_ns, query.limit
    while True:
        now_ns = searcher.clock.now_ns()
        wanted = replace(
            query,
            from_ns=from_ns,
            to_ns=UnixNs(now_ns + AHEAD_NS),
            newest_first=True,
            limit=limit,
        )
        try:
            found = await searcher.search(wanted)
        except SluiceError as error:
            if not started or not retryable(error.code):
                raise
            yield QueryResult(kind=query.kind, records=[], summary=unreadable(error))
            await searcher.clock.sleep(INTERVAL_S)
            continue
        started = True
        new = [row for row in reversed(found.records) if _key(row) not in seen]
        seen = {_key(row) for row in found.records}
        yield replace(found, records=new, summary=replace(found.summary, results=len(new)))
        if found.summary.more and new and limit == query.limit:
            # Records that the first limit cut off are old: later queries must not return them.
            query = replace(query, from_ns=_time_of(new[0], query.from_ns))
        from_ns = UnixNs(max(query.from_ns, now_ns - WINDOW_NS))
        limit = LIMIT_MAX
        await searcher.clock.sleep(INTERVAL_S)


def unreadable(error: SluiceError) -> QuerySummary:
    """Return the summary of a query that failed while it is followed; it is repeated."""
    return QuerySummary(results=0, partial=True, reasons=(str(error),))


def _time_of(row: Row, otherwise_ns: UnixNs) -> UnixNs:
    return otherwise_ns if row["ts_ns"] is None else UnixNs(int(str(row["ts_ns"])))


def _key(row: Row) -> _RecordKey:
    return row["agent_id"], row["boot_id"], row["seq"]
