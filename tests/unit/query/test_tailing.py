"""Positions of a tail: no record is skipped that was accepted long before it was acknowledged."""

import asyncio
from contextlib import aclosing

import pytest
from support.gc_world import MovedClock
from support.query_lake import DAY0_NS, make_query

from sluice_protocol.authority import UPLOAD_TIME_S_MAX
from sluice_protocol.errors import StoreUnavailable
from sluice_protocol.timestamps import format_rfc3339
from sluice_protocol.units import NS_PER_S, ObjectKey
from sluice_query.answer.result import QueryResult, QuerySummary, Row
from sluice_query.http.tail_api import tail_by_polling
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
