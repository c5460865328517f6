"""Following: a question asked again and again, each time giving only what is new.

It looks back over a window of record time, so that a batch that arrives a little late is seen too.
"""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from sluice_protocol.units import NS_PER_S, UnixNs
from sluice_query.answer import Answer, Row, Summary
from sluice_query.request import LIMIT_MAX, Query
from sluice_query.search import Searcher

INTERVAL_S: Final = 1.0
WINDOW_NS: Final = 300 * NS_PER_S
"""A record that comes later than this after its own time is not seen by a follower."""
AHEAD_NS: Final = 60 * NS_PER_S
"""Clocks of agents may run ahead by this."""

_Key = tuple[object, ...]


async def follow(searcher: Searcher, query: Query) -> AsyncIterator[Answer]:
    """Gives the latest records of a query, then whatever is new, without an end.

    Args:
        searcher: Who answers.
        query: A question for records; its end is ignored.

    Raises:
        SluiceError: As `Searcher.answer`.
    """
    seen: set[_Key] = set()
    from_ns, limit = query.from_ns, query.limit
    while True:
        now_ns = searcher.clock.now_ns()
        found = await searcher.answer(
            replace(
                query,
                from_ns=from_ns,
                to_ns=UnixNs(now_ns + AHEAD_NS),
                newest_first=True,
                limit=limit,
            )
        )
        fresh = [row for row in reversed(found.records) if _key(row) not in seen]
        seen = {_key(row) for row in found.records}
        yield _told(found, fresh)
        if found.summary.more and fresh and limit == query.limit:
            # What the first limit cut off is old news, not new.
            query = replace(query, from_ns=_at(fresh[0], query.from_ns))
        from_ns = UnixNs(max(query.from_ns, now_ns - WINDOW_NS))
        limit = LIMIT_MAX
        await searcher.clock.sleep(INTERVAL_S)


def _told(found: Answer, fresh: list[Row]) -> Answer:
    summary: Summary = replace(found.summary, results=len(fresh))
    return replace(found, records=fresh, summary=summary)


def _at(row: Row, otherwise_ns: UnixNs) -> UnixNs:
    return otherwise_ns if row["ts_ns"] is None else UnixNs(int(str(row["ts_ns"])))


def _key(row: Row) -> _Key:
    return row["agent_id"], row["boot_id"], row["seq"]
