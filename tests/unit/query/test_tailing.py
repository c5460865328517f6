"""Positions of a tail: no record is skipped that was accepted long before it was acknowledged.

A group of a tail that leaves records out reports it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from support.gc_world import MovedClock
from support.query_lake import DAY0_NS, make_query

from sluice_protocol.authority import UPLOAD_TIME_S_MAX
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query.answer.result import QueryResult, QuerySummary, Row
from sluice_query.http import tail_api
from sluice_query.http.tail_api import TailGroup, tail_by_polling
from sluice_query.question.request import Query

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
        async with aclosing(tail_by_polling(search, clock, make_query(), None)) as groups:
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
        async with aclosing(tail_by_polling(search, clock, make_query(), None)) as groups:
            async for group in groups:
                sent += group.records
                reasons.append(group.state.reasons)
                if clock.at_ns > end_ns + 10 * NS_PER_S:
                    break
        return sent, reasons

    sent, reasons = asyncio.run(run())
    assert sent == [ROW]
    assert reasons[0] == reasons[-1] == ()
    assert sum("no response" in "".join(one) for one in reasons) == outage_s

    async def first() -> None:
        clock.at_ns = begin_ns
        async with aclosing(tail_by_polling(search, clock, make_query(), None)) as groups:
            await anext(groups)

    with pytest.raises(StoreUnavailable):
        asyncio.run(first())


def found_of(first: int, last: int, *, more: bool = False) -> QueryResult:
    """Return records with these numbers, the newest first."""
    rows = [ROW | {"seq": seq} for seq in range(last, first - 1, -1)]
    return QueryResult(kind="logs", records=rows, summary=QuerySummary(more=more))


def shown(group: TailGroup) -> tuple[list[object], bool]:
    return [row["seq"] for row in group.records], group.state.more


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
        async with aclosing(tail_by_polling(search, clock, query, None)) as groups:
            return [shown(await anext(groups)) for _ in answers]

    assert asyncio.run(run()) == [wanted for _, wanted in answers]


def test_a_live_group_reports_older_records_that_the_limit_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def follow(*_: object) -> AsyncIterator[QueryResult]:
        for last in (4, 2):
            found = found_of(0, last)
            found.records.reverse()
            yield found

    monkeypatch.setattr(tail_api, "follow_live", follow)

    async def run() -> list[tuple[list[object], bool]]:
        unused: Any = None
        return [
            shown(group)
            async for group in tail_api.tail_live(unused, make_query(limit=3), unused, None)
        ]

    assert asyncio.run(run()) == [([2, 3, 4], True), ([0, 1, 2], False)]
