"""Positions of a tail: no record is skipped that was accepted long before it was acknowledged.

A group of a tail that leaves records out reports it.
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from support.gc_world import MovedClock
from support.query_lake import DAY0_NS, make_query

from sluice_protocol.authority import UPLOAD_TIME_S_MAX
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query import following
from sluice_query.following import LivePage, follow, follow_live, newest_of
from sluice_query.request import Query
from sluice_query.result import QueryResult, QuerySummary, Row

ROW: Row = {"agent_id": "host-1", "boot_id": "b", "seq": 0}


@pytest.mark.parametrize("tries_s", [0, 14, 16, UPLOAD_TIME_S_MAX])
def test_a_batch_whose_upload_was_tried_for_long_is_sent_once(tries_s: int) -> None:
    """Its time of acceptance is that before the first try; every poll is complete until now."""
    clock = MovedClock(DAY0_NS)
    accepted_ns = DAY0_NS + 5 * NS_PER_S
    acknowledged_ns = accepted_ns + tries_s * NS_PER_S

    async def search(query: Query) -> QueryResult:
        since_ns = query.accepted_from_ns or query.from_ns
        is_found = clock.at_ns >= acknowledged_ns and accepted_ns >= since_ns
        summary = QuerySummary(accepted_until=format_rfc3339(clock.at_ns))
        return QueryResult(kind="logs", records=[ROW] if is_found else [], summary=summary)

    async def run() -> list[Row]:
        sent: list[Row] = []
        async with aclosing(follow(search, clock, make_query())) as groups:
            async for group in groups:
                sent += group.records
                if clock.at_ns > acknowledged_ns + 60 * NS_PER_S:
                    break
        return sent

    assert asyncio.run(run()) == [ROW]


@pytest.mark.parametrize("outage_s", [1, 3, 10, 60, 300])
def test_a_tail_continues_after_an_outage(outage_s: int) -> None:
    """It reports the outage and then sends what was accepted in it; only the first query raises."""
    clock = MovedClock(DAY0_NS)
    begin_ns = DAY0_NS + 5 * NS_PER_S
    end_ns = begin_ns + outage_s * NS_PER_S

    async def search(query: Query) -> QueryResult:
        if begin_ns <= clock.at_ns < end_ns:
            raise StoreUnavailable("list", ObjectKey("k"), "no response")
        since_ns = query.accepted_from_ns or query.from_ns
        is_found = clock.at_ns >= end_ns and begin_ns + 1 >= since_ns
        summary = QuerySummary(accepted_until=format_rfc3339(clock.at_ns))
        return QueryResult(kind="logs", records=[ROW] if is_found else [], summary=summary)

    async def run() -> tuple[list[Row], list[tuple[str, ...]]]:
        sent: list[Row] = []
        reasons: list[tuple[str, ...]] = []
        async with aclosing(follow(search, clock, make_query())) as groups:
            async for group in groups:
                sent += group.records
                reasons.append(group.summary.reasons)
                if clock.at_ns > end_ns + 10 * NS_PER_S:
                    break
        return sent, reasons

    sent, reasons = asyncio.run(run())
    assert sent == [ROW]
    assert reasons[0] == reasons[-1] == ()
    assert sum("no response" in "".join(one) for one in reasons) == outage_s

    async def first() -> None:
        clock.at_ns = begin_ns
        async with aclosing(follow(search, clock, make_query())) as groups:
            await anext(groups)

    with pytest.raises(StoreUnavailable):
        asyncio.run(first())


def found_of(first: int, last: int, *, more: bool = False) -> QueryResult:
    """Return records with these numbers, the newest first."""
    rows = [ROW | {"seq": seq} for seq in range(last, first - 1, -1)]
    return QueryResult(kind="logs", records=rows, summary=QuerySummary(more=more))


def shown(found: QueryResult, limit: int) -> tuple[list[object], bool]:
    """Return the records of the group that a client gets, and whether it states others."""
    group = newest_of(found, limit)
    return [row["seq"] for row in group.records], group.summary.more


def test_a_group_reports_older_records_that_the_limit_leaves_out() -> None:
    """Those that the tail cuts off, and those that the search cuts off before new ones."""
    answers = [
        (found_of(0, 4), ([2, 3, 4], True)),
        (found_of(0, 5), ([5], False)),
        (found_of(6, 8, more=True), ([6, 7, 8], True)),
        (found_of(6, 8, more=True), ([], False)),
        (found_of(6, 11), ([9, 10, 11], False)),
    ]
    left = iter(answers)

    async def search(_: Query) -> QueryResult:
        return next(left)[0]

    async def run() -> list[tuple[list[object], bool]]:
        query, clock = make_query(limit=3), MovedClock(DAY0_NS)
        async with aclosing(follow(search, clock, query)) as groups:
            return [shown(await anext(groups), query.limit) for _ in answers]

    assert asyncio.run(run()) == [wanted for _, wanted in answers]


def test_the_first_records_of_a_reconciler_are_limited_and_state_that_others_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Later records are all returned, and so are those after a cursor."""

    async def every_line(_: object, __: Query, lines: Sequence[dict[str, Any]]) -> list[Row]:
        return list(lines)

    monkeypatch.setattr(following, "select_lines", every_line)
    asked: list[str | None] = []

    class Client:
        url = "http://reconciler"

        async def read(self, _: Sequence[str], after: str | None) -> LivePage:
            asked.append(after)
            first = 5 * len(asked)
            lines = tuple(ROW | {"kind": "logs", "seq": seq} for seq in range(first, first + 5))
            return LivePage(lines=lines, next=f"p.{first + 5}", reasons=())

    async def run(after: str | None) -> list[tuple[list[object], bool]]:
        asked.clear()
        unused: Any = None
        client: Any = Client()
        groups = follow_live(unused, make_query(limit=3), client, after)
        async with aclosing(groups):
            found = [await anext(groups) for _ in range(2)]
        return [([row["seq"] for row in one.records], one.summary.more) for one in found]

    whole = ([5, 6, 7, 8, 9], False), ([10, 11, 12, 13, 14], False)
    assert asyncio.run(run(None)) == [([7, 8, 9], True), whole[1]]
    assert asked == [None, "p.10"]
    assert asyncio.run(run("p.1")) == [*whole]
